"""Native encoders have the shape that their configuration gives."""

import pytest

from pretrain.model import Encoder, build_for_training, describe_model, read_description
from tests.support.configs import least_config
from tests.support.datasets import tokenizer_info


def test_settings_of_a_form_reach_the_model():
    modern = {"arch": "modernbert", "size": "tiny", "global_rope_theta": 5e4, "local_rope_theta": 3e3}
    found = describe_model(least_config(model=modern | {"local_attention": 64}), tokenizer_info(100))
    assert (found["rope_theta"], found["local_rope_theta"], found["window"]) == (5e4, 3e3, 64)
    assert not found["scaled_init"]
    assert describe_model(least_config(model={"scaled_init": True}), tokenizer_info(100))["scaled_init"]


def test_a_shape_that_an_earlier_version_recorded_is_filled_up():
    now = describe_model(least_config(), tokenizer_info(100))
    assert read_description({name: value for name, value in now.items() if name != "scaled_init"}) == now
    assert read_description({"arch": "auto", "config": {}}) == {"arch": "auto", "config": {}}


@pytest.mark.parametrize("on", [False, True])
def test_the_ways_that_a_configuration_chooses(on, monkeypatch):
    chosen = []
    monkeypatch.setattr(Encoder, "checkpoint_layers", lambda model: chosen.append("checkpointed"))
    monkeypatch.setattr(Encoder, "compile_graph", lambda model, shapes: chosen.append(f"compiled for {shapes}"))
    train = {"steps": 9, "activation_checkpointing": on, "compile": on}
    phases = [{"name": "a", "steps": 3}, {"name": "b", "steps": 6, "data": {"seq_len": 256}}]
    config = least_config(train=train, phases=phases, model={"size": "tiny"})
    build_for_training(config, describe_model(config, tokenizer_info(100)), None, None)
    assert chosen == (["checkpointed", "compiled for 3"] if on else [])
