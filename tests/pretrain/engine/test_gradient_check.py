"""Reduced gradients are compared with a plain all-reduce, and a defect of their reduction is found on all ranks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.config import OptimConfig
from pretrain.engine import Engine
from pretrain.engine.gradient_check import checked_parameters
from pretrain.model import Encoder, Prediction
from pretrain.optim import build_optimizer
from tests.support.engine_steps import RUNS, config, model, on_device, rank_batches
from tests.support.ranks import check_on_ranks

QUICK = [("fp32", "0"), ("fp32", "1"), ("bf16", "2"), ("bf16", "3")]
SPOILED = "head_dense.weight"  # the last matrix
Defect = Callable[[int, Tensor], Tensor]  # of the number of a micro-batch and its gradient


class CalledTwice(Encoder):
    """An encoder whose modules run twice in a forward pass, on different tokens."""

    def forward(self, tokens: Tensor, *stream: Any, **named: Any) -> Prediction:  # type: ignore[override]
        once = super().forward(tokens, *stream, **named)
        again = super().forward(tokens.roll(1), *stream, **named)
        return Prediction(*(a + b for a, b in zip(once, again, strict=True)))  # type: ignore[arg-type]


def differences(precision: str, zero: str, kind: type[Encoder], defect: Defect | None = None) -> dict[str, float]:
    """What the trial step of three micro-batches reports. On rank 1, a defect between autograd and the reduction
    spoils the gradients of a parameter."""
    encoder, number = model(kind), 0

    def spoil(parameter: Tensor) -> None:
        nonlocal number
        number += 1
        parameter.grad = defect(number, parameter.grad)

    if defect and dist.get_rank() == 1:
        encoder.get_parameter(SPOILED).register_post_accumulate_grad_hook(spoil)
    engine = Engine(config(precision, zero), encoder)
    reported = engine.rehearse(on_device(engine, rank_batches(1)))
    engine.release()
    return reported


def check(*runs: str) -> None:
    for run in runs:
        precision, zero = run.split(":")
        for kind in (Encoder, CalledTwice):
            assert differences(precision, zero, kind) == {}, f"{run}, {kind.__name__}"
        # Six gradients are summed. One is lost, or half of those of a rank, or one is not a number.
        lost = differences(precision, zero, Encoder, lambda n, g: g * (n < 3))
        halved = differences(precision, zero, CalledTwice, lambda _, g: g / 2)
        spoiled = differences(precision, zero, Encoder, lambda n, g: g * math.nan if n == 2 else g)
        for reported in (lost, halved):
            assert reported.keys() == {SPOILED}, f"{run}: {reported}"
            assert 0.05 < reported[SPOILED] < 1, f"{run}: {reported}"
        assert spoiled == {SPOILED: math.inf}, f"{run}: {spoiled}"


@pytest.mark.parametrize(
    "runs", [QUICK, pytest.param([run for run in RUNS if run not in QUICK], marks=pytest.mark.slow)]
)
def test_right_gradients_pass_and_defects_are_named(runs):
    check_on_ranks(check, 2, *(":".join(run) for run in runs))


def test_the_first_middle_and_last_of_each_kind_are_compared():
    encoder: nn.Module = model()
    matrices = ["layers.0.qkv.weight", "layers.1.qkv.weight", "head_dense.weight"]
    embeddings = ["word_embedding", "position_embedding", "type_embedding"]
    vectors = ["decoder_bias", "layers.1.qkv.bias", "head_norm.bias"]
    found = checked_parameters(encoder, build_optimizer(encoder, OptimConfig()))
    assert found == matrices + embeddings + vectors
