"""fp16's loss scale is lowered and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.engine import Engine, layout_of
from tests.support.checkpoints import write_parts
from tests.support.engine_steps import STEPS, config, full_state, model, rank_batches, record, take_step
from tests.support.ranks import check_on_ranks

ZERO = {"1": "2", "2": "3-cpu", "3": "1", "1-cpu": "3", "2-cpu": "1", "3-cpu": "2"}  # and where each is resumed


def fp16(zero: str) -> Config:
    return config("fp16", zero, deepspeed={"fp16": {"initial_scale_power": 28, "hysteresis": 1}})


def take(engine: Engine, number: int) -> float:
    """Take a step and return its gradient norm."""
    return take_step(engine, rank_batches(number))[2]


def scaler(engine: Engine) -> dict[str, Any]:
    state = vars(engine.deepspeed.optimizer.loss_scaler)
    return {name: state[name] for name in ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")}


def check_scale(folder: str) -> None:
    """An overflow changes nothing but the scale, which is halved; and the scale is part of what resumes."""
    # PyTorch computes in fp16 on every CPU; DeepSpeed asks for one that does so fast.
    get_accelerator().is_fp16_supported = lambda: True
    for zero, other in ZERO.items():
        engine = Engine(fp16(zero), model())
        start = full_state(engine, None)
        assert not np.isfinite(take(engine, 0)), f"ZeRO {zero}: a loss scale of 2**28 does not overflow"
        np.testing.assert_equal(full_state(engine, None), start, err_msg=f"ZeRO {zero}: of a step that was skipped")
        assert scaler(engine)["cur_scale"] == 2**27, zero
        for number in range(20):
            if np.isfinite(take(engine, number % len(STEPS))):
                break
        else:
            raise AssertionError(f"ZeRO {zero}: every step overflows")
        path = Path(folder) / zero
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
            np.testing.assert_equal(record(resumed), weights, err_msg=f"ZeRO {zero} -> {stage}")
            resumed.release()


@pytest.mark.slow
def test_loss_scales(tmp_path):
    check_on_ranks(check_scale, 2, tmp_path)
