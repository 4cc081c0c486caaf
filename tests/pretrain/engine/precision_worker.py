"""One rank: sums of gradients in 16 bits, and fp16's loss scale. Fails if a value is wrong.

`python -m tests.pretrain.engine.precision_worker FOLDER`
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from data_prep.common.processes import leave
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.data import DeviceFeed
from pretrain.engine import Engine, init_distributed, layout_of
from tests.pretrain.engine import varying_worker as varying
from tests.pretrain.engine.gradients_worker import model, step_gradients
from tests.pretrain.engine.layout_worker import record
from tests.support.checkpoints import write_parts

ZERO = ("1", "2", "3", "1-cpu", "2-cpu", "3-cpu")


def repeated_gradients(zero: str, times: int) -> dict[str, np.ndarray]:
    """Of one micro-batch of each rank, `times` over."""
    engine = Engine(varying.config("bf16", zero), model())
    batch = varying.global_batches(0, dist.get_world_size())[dist.get_rank()][0]
    total = engine.total
    engine.total = lambda counts: total([count / times for count in counts])  # type: ignore[method-assign]
    found = step_gradients(engine, [batch] * times, lr=0.0)
    engine.release()
    return {name: value for name, value in found.items() if name != "loss" and "norm" not in name.split()}


def check_sums() -> None:
    """Three times the same gradient is three times that gradient: bf16 has too few bits for it, fp32 enough."""
    for zero in ZERO:
        once, thrice = repeated_gradients(zero, 1), repeated_gradients(zero, 3)
        for name, value in once.items():
            np.testing.assert_allclose(thrice[name], 3 * value, rtol=1e-6, err_msg=f"ZeRO {zero}, {name}")
        low = sum(float(np.abs(torch.tensor(3 * v).bfloat16().float().numpy() - 3 * v).sum()) for v in once.values())
        assert low > 0, "a sum in bf16 would pass"


def fp16(zero: str) -> Config:
    values: dict[str, Any] = varying.config("fp16", zero).model_dump(mode="json")
    values["deepspeed"] = {"fp16": {"initial_scale_power": 28, "hysteresis": 1}}
    return Config.model_validate(values)


def take(engine: Engine, number: int) -> float:
    """Take a step and return its gradient norm, which agrees with the norms of the model's parts."""
    batches = varying.global_batches(number, dist.get_world_size())[dist.get_rank()]
    feed = DeviceFeed(engine.device)
    predictions = engine.total([sum(int((batch.labels >= 0).sum()) for batch in batches)])[0]
    values = engine.step([feed(batch).wait() for batch in batches], predictions, varying.LR, group_norms=True).tolist()
    if np.isfinite(values[2]):
        np.testing.assert_allclose(np.linalg.norm(values[4:]), values[2], rtol=1e-3)
    return values[2]


def scaler(engine: Engine) -> dict[str, Any]:
    found = vars(engine.deepspeed.optimizer.loss_scaler)
    return {name: found[name] for name in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")}


def check_scale(folder: Path, zero: str, other: str) -> None:
    """An overflow changes nothing but the scale, which is halved; and the scale is part of what resumes."""
    engine = Engine(fp16(zero), model())
    start = record_weights(engine)
    assert not np.isfinite(take(engine, 0)), f"ZeRO {zero}: a loss scale of 2**28 does not overflow"
    for name, value in record_weights(engine).items():
        assert np.array_equal(value, start[name]), f"ZeRO {zero}: {name} has changed in a step that was skipped"
    assert scaler(engine)["cur_scale"] == 2**27, zero
    for number in range(20):
        if np.isfinite(take(engine, number % len(varying.STEPS))):
            break
    else:
        raise AssertionError(f"ZeRO {zero}: every step overflows")
    path = folder / zero
    write_parts(path, engine.snapshot(path, copy=False))
    dist.barrier()
    before, weights = scaler(engine), record(engine)
    engine.release()
    assert weights["step"] == 1, "a step that was skipped counts for the optimizer"
    saved = Checkpoint(path, 2, {"layout": layout_of(fp16(zero))}, {})
    for stage in (zero, other):
        resumed = Engine(fp16(stage), model())
        resumed.load(saved)
        assert scaler(resumed) == before, f"ZeRO {zero} -> {stage}: another loss scale"
        for name, value in record(resumed).items():
            assert np.array_equal(value, weights[name]), f"ZeRO {zero} -> {stage}: {name} differs"
        resumed.release()


def record_weights(engine: Engine) -> dict[str, np.ndarray]:
    return varying.weights(engine.deepspeed.module, str(engine.deepspeed.zero_optimization_stage()))


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    # PyTorch computes in fp16 on every CPU; DeepSpeed asks for one that does so fast.
    get_accelerator().is_fp16_supported = lambda: True
    check_sums()
    for zero, other in zip(ZERO, ("2", "3-cpu", "1", "3", "1", "2"), strict=True):
        check_scale(Path(sys.argv[1]), zero, other)
    dist.barrier()
    leave(0)
