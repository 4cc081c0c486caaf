"""Stages of a config: the stages of a curriculum, and the stages that a batch ramp becomes."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import load_config
from pretrain.config.training import RampConfig
from tests.support.configs import LEAST, config_file, refusal


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def test_stages_fill_in_what_they_do_not_set(write):
    stages = "[{after_step: 5, seq_len: 512}, {after_step: 8, global_batch_size: 64, micro_batch_size: 8}]"
    config = load_config(write(LEAST), [f"curriculum={stages}", "train.micro_batch_size=16"])
    found = [(s.after_step, s.seq_len, s.global_batch_size, s.micro_batch_size) for s in config.stages]
    assert found == [(0, 128, 32, 16), (5, 512, 32, 16), (8, 512, 64, 8)]
    assert config.longest_row == 512
    assert load_config(write(LEAST), ["train.micro_batch_size=16"]).stages == config.stages[:1]
    assert load_config(write(LEAST)).longest_row == 128


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        ("[{after_step: 5}, {after_step: 5}]", "curriculum.1.after_step (5) must be larger than in the stage before"),
        (
            "[{after_step: 5, micro_batch_size: 5}]",
            "curriculum.0.global_batch_size (32) must be a multiple of curriculum.0.micro_batch_size (5)",
        ),
        ("[{after_step: 0}]", "curriculum.0.after_step must be 1 or more, not 0."),
        ("[{after_step: 1, seqlen: 64}]", "Unknown key curriculum.0.seqlen. Did you mean curriculum.0.seq_len?"),
    ],
)
def test_stages_that_cannot_be(write, stages, wanted):
    assert wanted in refusal(write(LEAST), f"curriculum={stages}")


def test_an_inherited_micro_batch_is_called_that(write):
    message = refusal(write(LEAST), "train.micro_batch_size=8", "curriculum=[{after_step: 2, global_batch_size: 4}]")
    assert (
        "curriculum.0.global_batch_size (4) must be a multiple of the micro_batch_size (8 of the stage before)"
        in message
    )


def megatron_sizes(ramp: RampConfig, last: int, steps: int) -> list[int]:
    """Rows of the batch of each step, as Megatron-LM finds them, in its own words."""
    increments = (last - ramp.start) // ramp.increment
    found, consumed = [], 0
    for _ in range(steps):
        grown = consumed * increments // ramp.rows  # consumed_samples / rampup_samples_per_increment, without rounding
        found.append(last if consumed > ramp.rows else min(last, ramp.start + grown * ramp.increment))
        consumed += found[-1]
    return found


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 50), st.integers(1, 40), st.integers(1, 12), st.integers(1, 3000))
def test_a_ramp_has_the_batches_of_megatron(start, increment, increments, rows):
    last = start + increment * increments
    ramp = RampConfig(start=start, increment=increment, rows=rows)
    sizes = ramp.sizes(last)
    steps = sizes[-1][0] + 3
    found = [max(pair for pair in sizes if pair[0] <= step)[1] for step in range(steps)]
    assert found == megatron_sizes(ramp, last, steps)
    assert [step for step, _ in sizes] == sorted({step for step, _ in sizes})


def test_a_ramp_becomes_stages_before_the_curriculum_s(write):
    ramp = "train.batch_ramp={start: 16, increment: 8, rows: 96}"
    later = "curriculum=[{after_step: 6, seq_len: 256, micro_batch_size: 4}]"
    config = load_config(write(LEAST), [ramp, later, "train.micro_batch_size=8"])
    found = [(s.after_step, s.seq_len, s.global_batch_size, s.micro_batch_size) for s in config.stages]
    assert found == [(0, 128, 16, 8), (3, 128, 24, 8), (5, 128, 32, 8), (6, 256, 32, 4)]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["train.batch_ramp={start: 16, increment: 9, rows: 96}"],
            "must go from start (16) to global_batch_size (32) in",
        ),
        (["train.batch_ramp={start: 32, increment: 8, rows: 96}"], "train: batch_ramp must go from start (32)"),
        (
            ["train.batch_ramp={start: 16, increment: 8, rows: 96}", "train.micro_batch_size=16"],
            "a batch of train.batch_ramp (24) must be a multiple of train.micro_batch_size (16)",
        ),
        (
            ["train.batch_ramp={start: 16, increment: 8, rows: 96}", "curriculum=[{after_step: 5}]"],
            "curriculum.0.after_step (5) must be larger than the 5 steps of train.batch_ramp",
        ),
    ],
)
def test_ramps_that_cannot_be(write, overrides, wanted):
    assert wanted in refusal(write(LEAST), *overrides)
