"""AdamW on gradients in the precision of the model: the bits of the step that converts them, and resumes of each other.

tests/pretrain/kernels/test_kernels.py compares the kernel itself with AdamW.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.checkpoint import Checkpoint
from pretrain.engine import Engine, layout_of
from pretrain.engine.flat_gradients import _GradientGroup
from pretrain.kernels import PLAIN, Operations, adamw
from tests.support import engine_steps
from tests.support.checkpoints import write_parts
from tests.support.engine_steps import model, on_device, rank_batches, record, take_step
from tests.support.ranks import check_on_ranks

BATCHES = (0, 3, 1, 3, 0, 0, 2, 3)  # of each step, as in engine_steps.STEPS: one micro-batch, or several
SAVED, NOT_FINITE = 4, 5  # steps
GRADIENTS, LAID_OUT = set[torch.dtype](), set[torch.dtype]()  # that the twin got, and of flat gradients
Trained = tuple[list[list[float]], dict[str, np.ndarray]]


def started(using: Operations, sent: str) -> Engine:
    encoder, zero = model(), {"stage": 1, "reduce_dtype": sent}
    encoder.use(using)
    optim = {"eps": 1e-3, "grad_clip": 0.5, "ema": 0.9}
    engine = Engine(engine_steps.config("bf16", "1", optim=optim, zero=zero), encoder)
    for number in (0, 1):
        assert not engine.rehearse(on_device(engine, rank_batches(number)))
    return engine


def trained(folder: Path, *using: Operations, sent: str) -> Trained:
    """Results of steps, and the state at last. From SAVED on the second operations continue, in another engine."""
    engine, values = started(using[0], sent), []
    for step, number in enumerate(BATCHES):
        if step == SAVED:
            write_parts(folder, engine.snapshot(folder, copy=False))
            dist.barrier()
            engine.release()
            engine = started(using[1], sent)
            engine.load(Checkpoint(folder, SAVED, {"layout": layout_of(engine.config)}, {}))
        weight = next(engine.module.parameters())
        hook = weight.register_hook(lambda gradient: gradient * torch.inf) if step == NOT_FINITE else None
        values.append(take_step(engine, rank_batches(number)))
        assert values[-1][3] == (step == NOT_FINITE)
        if hook:
            hook.remove()
    state = record(engine)
    engine.release()
    return values, state


def twin(weights: list[Tensor], gradients: list[Tensor], *others: Any) -> None:
    GRADIENTS.update(gradient.dtype for gradient in gradients)
    adamw(weights, gradients, *others)


def lay_out(group: Any, dtype: torch.dtype, real: Callable[..., None] = _GradientGroup._lay_out) -> None:
    LAID_OUT.add(dtype)
    real(group, dtype)


def check_bits(folder: str, sent: str) -> None:
    _GradientGroup._lay_out = lay_out  # type: ignore[method-assign]
    kernel = PLAIN._replace(adamw=twin)
    wanted, state = trained(Path(folder) / "plain", PLAIN, PLAIN, sent=sent)
    assert {torch.float32} == LAID_OUT
    for number, using in enumerate(((kernel, kernel), (PLAIN, kernel), (kernel, PLAIN))):
        values, other = trained(Path(folder) / str(number), *using, sent=sent)
        np.testing.assert_equal(values, wanted)
        np.testing.assert_equal(other, state, err_msg=str(number))
    alone, both = dist.get_world_size() == 1, {torch.float32, torch.bfloat16}
    assert (both if alone else {torch.float32}) == GRADIENTS
    assert (both if alone or sent == "bf16" else {torch.float32}) == LAID_OUT


@pytest.mark.parametrize(("ranks", "sent"), [(1, "fp32"), (2, "fp32"), (2, "bf16")])
def test_gradients_of_the_models_precision_give_the_same_bits(ranks, sent, tmp_path):
    check_on_ranks(check_bits, ranks, tmp_path, sent)
