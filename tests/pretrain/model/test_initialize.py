"""Initial weights have the standard deviations of their family."""

import math

import pytest
import torch

from pretrain.model import Encoder, EncoderShape

SIZES = {
    "vocab_size": 500,
    "layers": 8,
    "hidden": 64,
    "heads": 4,
    "intermediate": 128,
    "max_positions": 96,
    "pad_id": 0,
}
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
