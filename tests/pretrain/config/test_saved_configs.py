"""Configs that are saved and read again; tests/contracts/test_docs.py compares all keys and defaults with the docs."""

from functools import partial

import pytest

from pretrain.config_files import load_config, save_config
from tests.support.configs import LEAST, config_file


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def test_save_and_load_round_trip(write, tmp_path):
    overrides = ["optim.lr=1e-7", "model.size=base", "data.valid=väl", "deepspeed.zero_optimization.stage3_x=1"]
    config = load_config(write(LEAST), overrides)
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


@pytest.mark.parametrize("muon", ["", "optim.muon.momentum=0.9"])
def test_muon_has_settings_of_its_own(write, tmp_path, muon):
    config = load_config(write(LEAST), ["optim.name=muon", *filter(None, [muon])])
    assert config.optim.muon.model_dump() == {"momentum": 0.9 if muon else 0.95, "newton_schulz_steps": 5}
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


def test_a_config_cannot_be_changed(write):
    config = load_config(write(LEAST))
    with pytest.raises(ValueError):
        config.train.steps = 5
