"""Lengths in tokens: the steps that they become."""

from functools import partial

import pytest

from pretrain.config_files import load_config, save_config
from tests.support.configs import config_file, refusal


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def least(train, **more):
    return {"run": {"dir": "runs/x"}, "data": {"train": "data/x", "seq_len": 64}, "train": train, **more}


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (2048, 1), (2049, 2), (204_800, 100)])
def test_tokens_are_slots_of_rows(write, tokens, steps):
    assert load_config(write(least({"tokens": tokens}))).train.steps == steps


def test_phases_have_lengths_of_their_own(write, tmp_path):
    phases = [
        {"name": "a", "tokens": 64 * 32 * 5},
        {"name": "b", "tokens": 128 * 2 * 3 + 1, "data": {"seq_len": 128}, "train": {"global_batch_size": 2}},
        {"name": "c", "steps": 7},
    ]
    config = load_config(write(least({}, phases=phases)))
    assert [phase.steps for phase in config.phases] == [5, 4, 7]
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


@pytest.mark.parametrize(
    ("train", "phases", "wanted"),
    [
        ({"tokens": 0}, [], "train.tokens must be 1 or more, not 0."),
        ({"tokens": "1M"}, [], "train.tokens must be a whole number, not '1M'."),
        ({"tokens": 10}, [{"name": "a", "steps": 3}], "phases have their own lengths; remove train.tokens"),
        ({}, [{"name": "a"}], "phases.a.steps is missing; add it"),
        ({}, [{"name": "a", "tokens": 9, "data": {"seq_len": "x"}}], "phases.a.data.seq_len must be a whole number"),
    ],
)
def test_lengths_that_cannot_be(write, train, phases, wanted):
    assert wanted in refusal(write(least(train, phases=phases)))
