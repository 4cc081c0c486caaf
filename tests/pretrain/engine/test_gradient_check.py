"""Reduced gradients are compared with a plain all-reduce, and a defect of their reduction is found on all ranks."""

import pytest
from torch import nn

from pretrain.config import OptimConfig
from pretrain.engine.gradient_check import checked_parameters
from pretrain.optim import build_optimizer
from tests.pretrain.engine.gradients_worker import model
from tests.pretrain.engine.varying_worker import RUNS
from tests.support.ranks import run_ranks

QUICK = [("fp32", "0"), ("fp32", "1"), ("bf16", "2"), ("bf16", "3")]


@pytest.mark.parametrize(
    "runs", [QUICK, pytest.param([run for run in RUNS if run not in QUICK], marks=pytest.mark.slow)]
)
def test_right_gradients_pass_and_defects_are_named(runs):
    run_ranks("tests.pretrain.engine.gradient_check_worker", 2, *(":".join(run) for run in runs))


def test_the_first_middle_and_last_of_each_kind_are_compared():
    encoder: nn.Module = model()
    assert checked_parameters(encoder, build_optimizer(encoder, OptimConfig())) == [
        "layers.0.qkv.weight",
        "layers.1.qkv.weight",
        "head_dense.weight",
        "word_embedding",
        "position_embedding",
        "type_embedding",
        "decoder_bias",
        "layers.1.qkv.bias",
        "head_norm.bias",
    ]
