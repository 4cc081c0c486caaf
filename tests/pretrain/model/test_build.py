"""Native encoders have the shape that their configuration gives, and the initial weights of their family."""

import math

import pytest
import torch

from pretrain.model import Encoder, EncoderShape, build_for_training, describe_model, read_description
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


SIZES = {"vocab_size": 500, "layers": 8, "hidden": 64, "heads": 4, "intermediate": 128}
SIZES |= {"max_positions": 96, "pad_id": 0}
STD = 0.02
CUT = 0.8796  # standard deviation of a unit normal that is cut off at 2: sqrt(1 - 4 * pdf(2) / (2 * cdf(2) - 1))
BOTH = "attention_out.weight", "mlp_out.weight"
VOCABULARY = "word_embedding", "output_embedding"


@pytest.mark.parametrize(
    ("arch", "scaled", "deep", "unit"),
    [
        ("bert", False, (), 1.0),
        ("roberta", False, (), 1.0),
        ("bert", True, BOTH, 1.0),
        ("roberta", True, BOTH, 1.0),
        ("modernbert", False, (*BOTH, "head_dense.weight"), CUT),
        ("eurobert", False, (), 1.0),
        ("esm", True, BOTH, 1.0),
    ],
)
def test_standard_deviations(arch, scaled, deep, unit):
    """Of n normal draws, the deviation found is off by more than 4.5 / sqrt(2 n) of itself once in 150,000 times."""
    encoder = Encoder(EncoderShape(arch=arch, scaled_init=scaled, **SIZES))
    encoder.initialize(11)
    matrices = {name: p for name, p in encoder.named_parameters() if p.dim() == 2 and "type" not in name}
    assert len(matrices) >= 4 * SIZES["layers"] + 2
    for name, weight in matrices.items():
        values = weight.detach()[1 : SIZES["vocab_size"]] if name in VOCABULARY else weight.detach()
        wanted = STD * unit / (math.sqrt(2 * SIZES["layers"]) if name.endswith(deep or ("none",)) else 1.0)
        assert values.std().item() == pytest.approx(wanted, rel=4.5 / math.sqrt(2 * values.numel())), name
        assert abs(values.mean().item()) < 4.5 * wanted / math.sqrt(values.numel()), name


def test_what_is_not_scaled_is_drawn_alike():
    plain, scaled = (Encoder(EncoderShape(scaled_init=on, **SIZES)) for on in (False, True))
    plain.initialize(11)
    scaled.initialize(11)
    for (name, one), (_, other) in zip(plain.named_parameters(), scaled.named_parameters(), strict=True):
        assert torch.equal(one, other) != name.endswith(BOTH), name
