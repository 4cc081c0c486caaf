"""One rank of several GPUs: ZeRO 1 exchanges during the passes, on their own stream, and the host waits for none.

`python -m tests.gpu.overlap_worker`: fails if no exchange overlaps computing, or losses differ from plain exchanges.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from data_prep.common.processes import leave
from pretrain.engine import Engine, init_distributed
from pretrain.model import EncoderShape
from tests.pretrain.engine.test_overlap import config, step
from tests.support.engine_steps import LR, global_weights, model, on_device, rank_batches

LARGE = EncoderShape(vocab_size=101, layers=12, hidden=1024, heads=16, intermediate=4096, max_positions=32, pad_id=0)
Span = tuple[float, float]


def spans(engine: Engine) -> tuple[list[Span], dict[str, list[Span]]]:
    """Of the kernels of three steps: those that compute, and those of NCCL by their collective."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step(engine, 0)
        torch.cuda.synchronize()
    computing: list[Span] = []
    exchanges: dict[str, list[Span]] = {"ReduceScatter": [], "AllGather": []}
    for event in profiler.events() or []:
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        span = (event.time_range.start, event.time_range.end)
        names = [name for name in exchanges if name in event.name]
        if names:
            exchanges[names[0]].append(span)
        elif "nccl" not in event.name.lower():
            computing.append(span)
    return computing, exchanges


def check_spans() -> None:
    engine = Engine(config("bf16"), model(shape=LARGE))
    for _ in range(3):
        step(engine, 0)
    computing, exchanges = spans(engine)
    for name, found in exchanges.items():
        assert len(found) >= 2 * 8, f"{name}: {len(found)} kernels in three steps of eight groups"
        overlapping = sum(any(start < b and a < end for a, b in computing) for start, end in found)
        assert overlapping > len(found) // 2, f"{name}: {overlapping} of {len(found)} overlap computing"
    engine.release()


def check_host() -> None:
    """In a step of stage 1 the host waits for nothing."""
    engine = Engine(config("bf16"), model())
    step(engine, 0)
    inputs, weights = on_device(engine, rank_batches(1)), global_weights(engine, rank_batches(1))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(2):
        engine.step(inputs, weights, LR)
    torch.cuda.set_sync_debug_mode("default")
    engine.release()


def check_values() -> None:
    found = []
    for overlap in (True, False):
        engine = Engine(config("bf16", overlap=overlap), model())
        found.append([step(engine, number)[::2] for number in range(4)])
        engine.release()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-2)


if __name__ == "__main__":
    init_distributed()
    check_host()
    check_values()
    if dist.get_world_size() > 1:
        check_spans()
    dist.barrier()
    leave(0)
