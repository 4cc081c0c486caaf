"""One rank of benchmarks/scaling.py: measures the constants of the model without collectives, then real steps."""

import contextlib
import json
import math
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from deepspeed.comm import comm as deepspeed_comm

from benchmarks.engine_ranks import LR, batches_of, config_of, model_of
from benchmarks.throttled_links import Links, address
from pretrain.data import DeviceBatch
from pretrain.distributed import all_gather_json
from pretrain.engine import Engine, init_distributed
from pretrain.planning.collectives import ring_seconds

_PORT = 29401
_SKEW = 1e-3  # seconds between the ranks
_WARM_BYTES, _PROBE_BYTES = 1 << 20, 4 << 20
CALIBRATION_MBIT, CALIBRATION_ELEMENTS = 100, 1_048_576  # neither is the rate or the size of a step


def main() -> None:
    """Arguments: settings as JSON, and the file of results. Environment: of a rank."""
    settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    init_distributed()
    found = measure(settings, Links(settings["prefix"], dist.get_world_size()))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(settings: dict[str, Any], links: Links) -> dict[str, Any]:
    """Constants of this number of ranks; for each link rate, link and the seconds of each step."""
    engine = Engine(config_of(settings, stage=1), model_of(settings))
    batches, predictions = batches_of(settings, engine)
    intervals(engine, batches, predictions, 1)  # the first steps allocate memory

    def alone() -> None:
        with _no_collectives():
            engine.step(batches, predictions, LR)

    found: dict[str, Any] = {"parameters": engine.n_parameters, "optimizer": optimizer_seconds(engine.n_parameters)}
    found["alone"] = [seconds(alone) for _ in range(settings["steps"])]
    links.throttle(dist.get_rank(), CALIBRATION_MBIT)
    dist.barrier()
    found |= collectives(probe()) if dist.get_world_size() > 1 else {"shares": {}, "hop": 0.0}
    found["rates"] = {}
    for mbit in settings["rates"]:
        links.throttle(dist.get_rank(), mbit)
        dist.barrier()
        link = probe()
        found["rates"][str(mbit)] = {"link": link, "steps": intervals(engine, batches, predictions, settings["steps"])}
    return found


def intervals(engine: Engine, batches: list[DeviceBatch], predictions: torch.Tensor, count: int) -> list[float]:
    """Seconds from the end of a step to the end of the next one: gathers run behind the forward pass of the next."""
    dist.barrier()
    ends = []
    for _ in range(count + 1):
        engine.step(batches, predictions, LR).tolist()
        ends.append(time.perf_counter())
    engine.wait_for_weights()
    dist.barrier()
    return [end - begin for begin, end in pairwise(ends)]


class _Done:
    """The handle of a collective that does nothing."""

    def wait(self) -> None: ...


@contextlib.contextmanager
def _no_collectives() -> Iterator[None]:
    """Let collectives of PyTorch and DeepSpeed do nothing, but gathers repeat this rank's part: weights stay finite."""

    def gather(whole: torch.Tensor, part: torch.Tensor, *_: object, **__: object) -> _Done:
        whole.view(-1, part.numel()).copy_(part.clone())
        return _Done()

    with contextlib.ExitStack() as stack:
        for module in (dist, deepspeed_comm.cdb):
            for name in ("all_reduce", "all_to_all_single", "all_gather"):
                stack.enter_context(patch.object(module, name, lambda *_, **__: _Done()))
            stack.enter_context(patch.object(module, "all_gather_into_tensor", gather))
        yield


def optimizer_seconds(parameters: int) -> float:
    """Of AdamW on this rank's part, while all ranks step."""
    part = torch.zeros(parameters // dist.get_world_size(), requires_grad=True)
    part.grad = torch.ones_like(part)
    adam = torch.optim.AdamW([part], lr=LR, fused=True)
    return statistics.median(seconds(adam.step) for _ in range(5))


def collectives(link: float) -> dict[str, Any]:
    """hop: seconds of a step of an all-reduce of a few bytes, which passes twice around a ring.

    shares: of the link that gloo's collectives use, relative to a ring that sends at all times in both directions. A
    pair of gloo's ranks has one connection. The message "ready to receive" waits there behind the data of the other
    direction, so that two ranks send to each other one after the other. As in a step, two collectives run at a time.
    """
    ranks = dist.get_world_size()
    whole, received, part = (torch.ones(n) for n in (CALIBRATION_ELEMENTS,) * 2 + (CALIBRATION_ELEMENTS // ranks,))
    ideal = ring_seconds(4 * whole.numel(), ranks, link)

    def late(call: Callable[[], list[Any]]) -> Callable[[], object]:
        """Ranks begin one after the other, as after a pass: exactly together, both directions sometimes overlap."""

        def run() -> None:
            time.sleep(_SKEW * dist.get_rank())
            for work in call():
                work.wait()

        return run

    def halves(collective: Callable[..., Any], sent: torch.Tensor) -> list[Any]:
        return [collective(*half, async_op=True) for half in zip(received.chunk(2), sent.chunk(2), strict=True)]

    calls = {
        "reduce": lambda: halves(dist.all_to_all_single, whole),
        "gather": lambda: halves(dist.all_gather_into_tensor, part),
    }
    few = torch.ones(3)
    small = statistics.fmean([seconds(lambda: dist.all_reduce(few)) for _ in range(20)])
    return {
        "hop": small / (2 * (ranks - 1)),
        "shares": {
            name: ideal / statistics.median([seconds(late(call)) for _ in range(11)]) for name, call in calls.items()
        },
    }


def seconds(call: Callable[[], object]) -> float:
    """From when all ranks are ready to when the slowest has finished."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    taken = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def probe() -> float:
    """Bytes per second from rank 1 to rank 0 through a plain socket; the same on all ranks. Infinite with one rank."""
    found = math.inf
    if dist.get_world_size() > 1 and dist.get_rank() == 0:
        found = _received()
    elif dist.get_rank() == 1:
        with _connected() as peer:
            peer.sendall(bytes(_WARM_BYTES + _PROBE_BYTES))
    rate: float = all_gather_json(found)[0] if dist.get_world_size() > 1 else found
    return rate


def _received() -> float:
    with socket.create_server((address(0), _PORT)) as server, server.accept()[0] as peer:
        _receive(peer, _WARM_BYTES)  # until TCP sends at full speed
        begin = time.perf_counter()
        _receive(peer, _PROBE_BYTES)
        return _PROBE_BYTES / (time.perf_counter() - begin)


def _connected() -> socket.socket:
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address(0), _PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _receive(peer: socket.socket, size: int) -> None:
    while size:
        size -= len(peer.recv(min(size, 1 << 20)))


if __name__ == "__main__":
    main()
