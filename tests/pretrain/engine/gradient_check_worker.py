"""One rank: the check of reduced gradients passes where they are right, and names a planted defect on all ranks.

`python -m tests.pretrain.engine.gradient_check_worker PRECISION:ZERO...`, as `bf16:2` and `fp32:3-cpu`.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_prep.common.processes import leave
from pretrain.data import DeviceFeed
from pretrain.engine import Engine, init_distributed
from pretrain.model import Encoder, Prediction
from tests.pretrain.engine import varying_worker as varying
from tests.pretrain.engine.gradients_worker import SHAPE

SPOILED = "head_dense.weight"  # the last matrix
Defect = Callable[[int, Tensor], Tensor]  # of the number of a micro-batch and its gradient


class CalledTwice(Encoder):
    """An encoder whose modules run twice in a forward pass, on different tokens."""

    def forward(self, tokens: Tensor, *stream: Any, **named: Any) -> Prediction:  # type: ignore[override]
        once = super().forward(tokens, *stream, **named)
        again = super().forward(tokens.roll(1), *stream, **named)
        return Prediction(*(a + b for a, b in zip(once, again, strict=True)))  # type: ignore[arg-type]


def encoder(kind: type[Encoder] = Encoder, defect: Defect | None = None) -> Encoder:
    """A model; one parameter's gradients are spoiled between autograd and their reduction."""
    found = kind(SHAPE)
    found.initialize(0)
    number = 0

    def spoil(parameter: Tensor) -> None:
        nonlocal number
        assert defect is not None
        assert parameter.grad is not None
        number += 1
        parameter.grad = defect(number, parameter.grad)

    if defect:
        found.get_parameter(SPOILED).register_post_accumulate_grad_hook(spoil)
    return found


def differences(precision: str, zero: str, model: Encoder, rehearse: bool = False) -> dict[str, float]:
    """What the check of a step of three micro-batches reports."""
    engine = Engine(varying.config(precision, zero), model)
    feed = DeviceFeed(engine.device)
    batches = varying.global_batches(1, dist.get_world_size())[dist.get_rank()]
    inputs = [feed(batch).wait() for batch in batches]
    found: dict[str, float] = {}
    if rehearse:
        engine.rehearse(inputs, found.update)
    else:
        predictions = engine.total([sum(int((batch.labels >= 0).sum()) for batch in batches)])[0]
        engine.step(inputs, predictions, varying.LR, report_gradients=found.update)
    engine.release()
    return found


def on_rank_1(change: Defect) -> Defect:
    return change if dist.get_rank() == 1 else lambda _, gradient: gradient


def check(precision: str, zero: str) -> None:
    what = f"{precision}, ZeRO {zero}"
    for kind in (Encoder, CalledTwice):
        found = differences(precision, zero, encoder(kind), rehearse=kind is CalledTwice)
        assert not found, f"{what}, {kind.__name__}: {found}"
    # Six gradients are summed. One is lost, or half of those of a rank, or one is not a number.
    lost = differences(precision, zero, encoder(defect=on_rank_1(lambda n, g: g * (n < 3))))
    halved = differences(precision, zero, encoder(CalledTwice, on_rank_1(lambda _, g: g / 2)), rehearse=True)
    spoiled = differences(precision, zero, encoder(defect=on_rank_1(lambda n, g: g * math.nan if n == 2 else g)))
    for found in (lost, halved):
        assert found.keys() == {SPOILED}, f"{what}: {found}"
        assert 0.05 < found[SPOILED] < 1, f"{what}: {found}"
    assert spoiled == {SPOILED: math.inf}, f"{what}: {spoiled}"


if __name__ == "__main__":
    init_distributed()
    torch.set_num_threads(1)
    for run in sys.argv[1:]:
        check(*run.split(":"))
    dist.barrier()
    leave(0)
