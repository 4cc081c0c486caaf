"""Clipping with the bits of DeepSpeed's."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from pretrain.checkpoint import Checkpoint
from pretrain.engine import Engine, layout_of
from pretrain.engine.clipping import Clipping
from tests.support.checkpoints import write_parts
from tests.support.engine_steps import config, model, rank_batches, take_step
from tests.support.ranks import check_on_ranks


@pytest.mark.parametrize(
    ("norm", "scale", "largest"), [(3.0, 1.0, 0.5), (0.2, 1.0, 0.5), (9.0, 8.0, 1.0), (9.0, 4.0, 0.0)]
)
def test_clipping_has_the_bits_of_deepspeeds(norm, scale, largest):
    optimizer = SimpleNamespace(loss_scale=scale, clip_grad=largest, device=torch.device("cpu"))
    ours, theirs = (torch.linspace(-2, 3, 1001) for _ in range(2))
    Clipping(optimizer, fp16=True)
    optimizer.unscale_and_clip_grads([ours], torch.tensor(norm))
    DeepSpeedZeroOptimizer.unscale_and_clip_grads(optimizer, [theirs], torch.tensor(norm))
    assert torch.equal(ours, theirs)


def load_with_another_limit(folder: str) -> None:
    for zero in ("1", "2"):
        before, now = (config("fp32", zero, optim={"grad_clip": limit}) for limit in (0.5, 0.01))
        engine, path = Engine(before, model()), Path(folder) / zero
        take_step(engine, rank_batches(0))
        write_parts(path, engine.snapshot(path, copy=False))
        engine.release()
        engine = Engine(now, model())
        engine.load(Checkpoint(path, 1, {"layout": layout_of(before)}, {}))
        assert engine.deepspeed.optimizer.clip_grad == 0.01
        engine.release()


def test_the_config_decides_the_limit_after_a_checkpoint_is_loaded(tmp_path):
    check_on_ranks(load_with_another_limit, 1, tmp_path)
