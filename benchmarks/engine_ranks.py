"""The ranks of benchmarks/engine.py: the same model and batches for the engine and for plain DDP."""

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.step_work import Weights
from pretrain import checkpoint
from pretrain.checkpoint import Saver, newest_verified
from pretrain.config import CheckpointConfig, Config
from pretrain.data import Batch, DeviceBatch, DeviceFeed
from pretrain.engine import Engine, init_distributed, layout_of
from pretrain.model import Encoder, EncoderShape
from pretrain.optim.parameter_groups import described, parameter_groups

SEED, LR, RATE = 7, 1e-4, 0.15
FIRST_ID = 5  # of ordinary tokens
SAVES = 6  # of each kind; the first allocates memory and is not counted
Measure = Callable[[dict[str, Any], Path], dict[str, Any]]


def on_ranks(measure: Measure, settings: dict[str, Any], procs: int, device: str) -> dict[str, Any]:
    """Call `measure(settings, folder)` in `procs` processes, a rank of one thread each; the result of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(procs), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"DS_ACCELERATOR": device, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore::FutureWarning"}
    with (
        tempfile.TemporaryDirectory(prefix="engine-") as folder,
        ProcessPoolExecutor(procs, get_context("spawn")) as pool,
    ):
        ranks = [pool.submit(_rank, measure, settings, Path(folder), rank) for rank in range(procs)]
        return ranks[0].result()


def _rank(measure: Measure, settings: dict[str, Any], folder: Path, rank: int) -> dict[str, Any]:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    init_distributed()
    result = measure(settings, folder)
    dist.barrier()
    dist.destroy_process_group()
    return result


def config_of(settings: dict[str, Any], stage: int) -> Config:
    return Config.model_validate(
        {
            "run": {"dir": "unused"},
            "data": {"train": "unused", "seq_len": settings["seq_len"]},
            "train": {"steps": 1, "precision": settings["precision"]},
            "zero": {"stage": stage},
        }
    )


def model_of(settings: dict[str, Any]) -> Encoder:
    hidden = settings["hidden"]
    sizes = {"hidden": hidden, "heads": hidden // 64, "intermediate": 4 * hidden}
    sizes |= {"vocab_size": settings["vocab_size"], "layers": settings["layers"], "max_positions": settings["seq_len"]}
    model = Encoder(EncoderShape(**sizes, pad_id=0))
    model.initialize(SEED)
    return model


def batch_of(settings: dict[str, Any], number: int) -> Batch:
    """A micro-batch of rows of two documents, the same number of predictions in each row."""
    rng = np.random.default_rng([SEED, dist.get_rank(), number])
    rows, seq_len = settings["micro_batch_size"], settings["seq_len"]
    starts = np.arange(rows) * seq_len
    ends = np.stack([starts + rng.integers(seq_len // 4, 3 * seq_len // 4, rows), starts + seq_len], axis=1).reshape(-1)
    cu_seqlens = np.array([0, *ends], dtype=np.int32)
    lengths = np.diff(cu_seqlens)
    predicted = round(RATE * seq_len)
    masked = [start + np.sort(rng.choice(seq_len, predicted, replace=False)) for start in starts]
    return Batch(
        tokens=rng.integers(FIRST_ID, settings["vocab_size"], rows * seq_len),
        positions=np.arange(rows * seq_len) - np.repeat(cu_seqlens[:-1].astype(np.int64), lengths),
        cu_seqlens=cu_seqlens,
        masked_positions=np.concatenate(masked),
        labels=rng.integers(FIRST_ID, settings["vocab_size"], rows * predicted),
        seq_len=seq_len,
        n_tokens=rows * seq_len,
        n_replaced=0,
    )


def batches_of(settings: dict[str, Any], engine: Engine) -> tuple[list[DeviceBatch], Tensor]:
    """The micro-batches of a step on the device, and the predictions of all ranks."""
    feed = DeviceFeed(engine.device)
    batches = [feed(batch_of(settings, number)).wait() for number in range(settings["accumulation"])]
    return batches, engine.total([sum(len(batch.labels) for batch in batches)])[0]


def turns(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The order of the sides in each round: every round starts with another one."""
    for number in range(rounds):
        first = number % len(names)
        yield [*names[first:], *names[:first]]


class Side(Protocol):
    """The engine, or DDP with the same method."""

    def step(self, batches: Sequence[DeviceBatch], predictions: Tensor, lr: float) -> Tensor: ...


class Plain:
    """PyTorch's DistributedDataParallel as in its documentation, with the engine's loss, optimizer and metrics.

    With bf16, weights are bf16 as in the engine, and the optimizer has fp32 copies.
    """

    def __init__(self, model: Encoder, config: Config, device: torch.device):
        dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
        self.model = DistributedDataParallel(model.to(device, dtype), gradient_as_bucket_view=True)
        self.weights, self.device = Weights(parameter_groups(described(model), config.optim), config), device

    def step(self, batches: Sequence[DeviceBatch], predictions: Tensor, lr: float) -> Tensor:
        scale = dist.get_world_size() / predictions.clamp(min=1)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            with nullcontext() if number == len(batches) else self.model.no_sync():
                output = self.model(**batch.inputs)
                sums += torch.stack([output.cross_entropy, output.correct]).double()
                (output.loss * scale.to(output.loss.dtype)).backward()
        norm = self.weights.step(lr)
        dist.all_reduce(sums)
        return torch.cat([sums, norm.double().reshape(1)])


def compare_engines(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds per step of DDP and the engine with each ZeRO stage, by round; their last results; times of saves."""
    engines = {f"zero-{stage}": Engine(config_of(settings, stage), model_of(settings)) for stage in settings["stages"]}
    first = next(iter(engines.values()))
    sides: dict[str, Side] = {"ddp": Plain(model_of(settings), config_of(settings, stage=1), first.device)}
    sides |= engines
    batches, predictions = batches_of(settings, first)
    last: dict[str, list[float]] = {}

    def seconds(name: str, steps: int) -> float:
        """Per step, from when all ranks are ready to when all have finished."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            values = sides[name].step(batches, predictions, LR)
        last[name] = values.tolist()
        dist.barrier()
        return (time.perf_counter() - start) / steps

    for name in sides:
        seconds(name, settings["skip"])
    rounds = [
        {name: seconds(name, settings["steps"]) for name in order} for order in turns([*sides], settings["rounds"])
    ]
    stage = 1 if 1 in settings["stages"] else settings["stages"][0]
    resumed = Engine(config_of(settings, stage), model_of(settings))
    saved, layout = engines[f"zero-{stage}"], layout_of(config_of(settings, stage))
    return {
        "rounds": rounds,
        "last": last,
        "parameters": sum(p.numel() for p in model_of(settings).parameters()),
        "device": str(first.device),
        "saves": save_times(folder, saved, resumed, layout, lambda: saved.step(batches, predictions, LR).tolist()),
    }


def save_times(
    folder: Path, engine: Engine, resumed: Engine, layout: Any, step: Callable[[], object]
) -> dict[str, float]:
    """Cost of a checkpoint on this rank: medians in seconds, and bytes.

    Args:
        folder: where checkpoints are written.
        engine: has trained.
        resumed: another engine of the same run; the checkpoint is loaded into it.
        step: takes one step of `engine`.
    """
    times: dict[str, float] = {}
    for first, kind in ((1, "synchronous"), (1 + SAVES, "asynchronous")):
        saves = [_save(engine, folder, number, kind, layout, step) for number in range(first, first + SAVES)][1:]
        times |= {f"{kind} {name}": statistics.median(one[name] for one in saves) for name in saves[0]}
    times["copy"] = statistics.median(_seconds(lambda: engine.snapshot(folder / "none", True)) for _ in range(5))
    times["step"] = statistics.median(_seconds(step) for _ in range(20))
    start = time.perf_counter()
    newest = newest_verified(folder, print)
    assert newest
    times["verify"] = time.perf_counter() - start
    times["bytes"] = sum(file["bytes"] for file in newest.files.values())
    times["load"] = _seconds(lambda: resumed.load(newest))
    return times


def _save(
    engine: Engine, folder: Path, number: int, kind: str, layout: Any, step: Callable[[], object]
) -> dict[str, float]:
    """Seconds that a save stops training, and until it is committed; steps continue meanwhile."""
    settings = CheckpointConfig(asynchronous=kind == "asynchronous", keep=1)
    saver = Saver(folder, settings, engine.snapshot, lambda step, metrics: None)
    dist.barrier()
    start = time.perf_counter()
    saver.begin(number, {"layout": layout})
    stalled, steps, stepping = time.perf_counter() - start, 0, 0.0
    while saver.busy:
        begin = time.perf_counter()
        step()
        steps, stepping = steps + 1, stepping + time.perf_counter() - begin
        begin = time.perf_counter()
        if engine.total(saver.poll())[0] == dist.get_world_size():
            saver.finish()
        stalled += time.perf_counter() - begin
    committed = time.perf_counter() - start
    saver.close()
    assert checkpoint.committed(folder)
    return {"stall": stalled, "committed": committed, "step meanwhile": stepping / steps if steps else 0.0}


def _seconds(function: Callable[[], Any]) -> float:
    dist.barrier()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
