"""The items `constants` and `ZeRO 1` of benchmarks/gpu_table.py.

Constants of the scaling model: bandwidth of an optimizer step, and with several ranks the bandwidth and latency of a
node's collectives and how much they slow down compute.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import engine
from benchmarks.engine_ranks import compare_engines, on_ranks
from benchmarks.gpu_steps import Bench, Unit, Values
from benchmarks.product_rates import seconds_of
from pretrain.planning.collectives import ring_seconds

_OF_ELEMENT = 7 * 4  # bytes: AdamW reads weight, gradient and two moments, and writes all except the gradient
_ELEMENTS = {"cuda": 1 << 28, "cpu": 1 << 22}  # fp32, of a large collective and of an optimizer step
_QUICK_ELEMENTS, _SMALL_ELEMENTS = 1 << 20, 1 << 10
_WIDTH, _PRODUCTS = {"cuda": 8192, "cpu": 512}, 20


def constants(bench: Bench) -> Iterator[Unit]:
    """Figures of the scaling model of `maskwright plan`. The item `steps` measures the rates of models."""
    yield "optimizer", lambda: {"memory, bytes per second": optimizer_bandwidth(bench.device, bench.quick)}
    for ranks in (2, 4, 8):
        if ranks <= (torch.cuda.device_count() if bench.cuda else 2):
            yield f"{ranks} ranks", partial(node_collectives, bench.device, bench.quick, ranks)


def zero_1(bench: Bench) -> Iterator[Unit]:
    """Milliseconds of a step with DistributedDataParallel and with the engine's ZeRO 1, for each number of ranks."""
    settings: Values = {"stages": [1], "accumulation": 1, "rounds": 5, "steps": 10, "skip": 3}
    settings |= (engine.GPU if bench.cuda else engine.CPU) | (engine.QUICK if bench.quick else {})
    for ranks in (1, 2, 4, 8):
        if ranks <= (torch.cuda.device_count() if bench.cuda else 2):
            yield f"{ranks} ranks", partial(steps_on_ranks, settings, ranks, bench.device)


def steps_on_ranks(settings: Values, ranks: int, device: str) -> Values:
    """See `zero_1`."""
    rounds = on_ranks(compare_engines, settings, ranks, device)["rounds"]
    return {side: 1e3 * statistics.median(times[side] for times in rounds) for side in rounds[0]}


def optimizer_bandwidth(device: str, quick: bool) -> float:
    """Bytes per second of a fused AdamW step on a flat fp32 tensor."""
    flat = torch.zeros(elements(device, quick), device=device, requires_grad=True)
    flat.grad = torch.ones_like(flat)
    adam = torch.optim.AdamW([flat], lr=1e-4, fused=True)
    adam.step()
    found = _OF_ELEMENT * flat.numel() / seconds_of(adam.step, device)
    del flat, adam
    if device == "cuda":
        torch.cuda.empty_cache()  # other processes of this phase need the memory
    return found


def node_collectives(device: str, quick: bool, ranks: int) -> dict[str, float]:
    """Bandwidth, latency of a hop, and slowdown of compute, of all-gathers over `ranks` ranks of this machine."""
    return on_ranks(_collectives, {"elements": elements(device, quick)}, ranks, device)


def elements(device: str, quick: bool) -> int:
    """Elements of a large tensor."""
    return _QUICK_ELEMENTS if quick else _ELEMENTS[device]


def _collectives(settings: dict[str, Any], folder: Path) -> dict[str, float]:
    """See `node_collectives`; on each rank."""
    cuda = os.environ["DS_ACCELERATOR"] == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    ranks = dist.get_world_size()
    large, small = (_gather(size // ranks, ranks, device) for size in (settings["elements"], _SMALL_ELEMENTS))
    seconds, latency = (_median_seconds(lambda call=call: call().wait(), device) for call in (large, small))  # type: ignore[misc]
    sent = ring_seconds(4 * settings["elements"], ranks, 1.0)
    return {
        "bytes per second": sent / max(seconds - latency, 1e-9),
        "seconds per hop": latency / (ranks - 1),
        "slowdown": _slowdown(large, seconds, device),
    }


def _gather(part: int, ranks: int, device: torch.device) -> Callable[[], Any]:
    whole, own = torch.empty(part * ranks, device=device), torch.ones(part, device=device)
    return lambda: dist.all_gather_into_tensor(whole, own, async_op=True)


def _slowdown(gather: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Share of its speed that a matrix product loses while gathers run."""
    width = _WIDTH[device.type]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    one, other = (torch.ones(width, width, device=device, dtype=dtype) for _ in range(2))

    def products() -> None:
        for _ in range(_PRODUCTS):
            one @ other

    alone = _median_seconds(products, device)
    # Each rank measures other seconds, but all must start as many gathers: otherwise one waits for ever.
    count = torch.tensor(math.ceil(2 * alone / seconds), device=device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    running = [gather() for _ in range(int(count))]
    beside = _seconds(products, device)
    for handle in running:
        handle.wait()
    return max(0.0, 1 - alone / beside)


def _median_seconds(call: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(8):
        dist.barrier()
        times.append(_seconds(call, device))
    return statistics.median(times[3:])


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of a call, on the current stream of the device alone."""
    if device.type == "cpu":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    torch.cuda.current_stream().synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3
