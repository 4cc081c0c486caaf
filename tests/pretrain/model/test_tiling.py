"""A larger model from a smaller one: every weight by plain loops, the same outputs at twice the width, and noise."""

from dataclasses import replace

import pytest
import torch

from pretrain.model import Encoder, EncoderShape
from pretrain.model.tiling import tiled, with_noise
from tests.support import encoders

SIZES = {"layers": 3, "hidden": 8, "heads": 2, "intermediate": 6}
SMALL = EncoderShape(vocab_size=70, max_positions=40, pad_id=0, norm_eps=1e-12, **SIZES)
ARCHS = ("bert", "roberta", "modernbert")


def small_state(shape: EncoderShape) -> dict[str, torch.Tensor]:
    """Random weights, biases and norms, so that a swapped one shows."""
    encoder = Encoder(shape)
    generator = torch.Generator().manual_seed(1)
    state = encoder.state_dict()
    return {name: 0.5 * torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


@pytest.mark.parametrize("arch", ARCHS)
def test_every_weight_has_its_place(arch):
    """Five heads: whole ones, although the center of 20 columns is inside a head."""
    small = replace(SMALL, arch=arch)
    large = replace(small, layers=5, hidden=20, heads=5, intermediate=15)
    state = small_state(small)
    found = tiled(state, small, large)
    # The smaller one is in the center, and continued on both sides.
    stream, units = [2, 3, 4, 5, 6, 7, *range(8), 0, 1, 2, 3, 4, 5], [2, 3, 4, 5, *range(6), 0, 1, 2, 3, 4]
    heads = [head * 4 + dimension for head in (1, 0, 1, 0, 1) for dimension in range(4)]
    qkv = [part * 8 + row for part in range(3) for row in heads]
    halves = [part * 6 + row for part in range(2 if arch == "modernbert" else 1) for row in units]
    rows = {"qkv": qkv, "mlp_in": halves}
    columns = {"attention_out": heads, "mlp_out": units}
    layers = [0, 1, 1, 2, 2]  # of 0, 0.6, 1.2, 1.8, 2.4
    assert found.keys() == Encoder(large).state_dict().keys()
    for name, tensor in found.items():
        words = name.split(".")
        if name.startswith("layers."):
            words[1] = str(layers[int(words[1])])
        before, part = state[".".join(words)], words[-2] if len(words) > 1 else ""
        if not part:
            wanted = [[row[c] for c in stream] for row in before.tolist()] if before.ndim == 2 else before.tolist()
        elif before.ndim == 2:
            across = columns.get(part, stream)
            wanted = [[before[r, c].item() / across.count(c) for c in across] for r in rows.get(part, stream)]
        else:
            share = stream if part == "head_norm" else [*range(100)]
            wanted = [before[r].item() / share.count(r) for r in rows.get(part, stream)]
        assert torch.allclose(tensor, torch.tensor(wanted), rtol=1e-6, atol=0), name


@pytest.mark.parametrize("arch", ARCHS)
def test_twice_the_width_computes_the_same(arch):
    small = replace(SMALL, arch=arch, vocab_size=101)
    large = replace(small, hidden=16, heads=4, intermediate=12)
    state = small_state(small)
    batch = encoders.stream()
    hidden = [batch[name] for name in ("tokens", "positions", "cu_seqlens")]
    found = []
    for shape, weights in ((small, state), (large, tiled(state, small, large))):
        encoder = Encoder(shape).eval()
        encoder.load_state_dict(weights)
        found.append(encoder.logits(encoder.hidden(*hidden, encoders.SEQ_LEN)))
    assert torch.allclose(*found, rtol=1e-3, atol=1e-4)


def test_a_copy_of_modernbert_s_first_layer_takes_the_norm_of_the_embeddings():
    small = replace(SMALL, arch="modernbert")
    state = small_state(small)
    found = tiled(state, small, replace(small, layers=9))
    assert torch.equal(found["layers.1.attention_norm.weight"], state["embedding_norm.weight"])
    assert torch.equal(found["layers.1.mlp_norm.weight"], state["layers.0.mlp_norm.weight"])
    assert torch.equal(found["layers.8.mlp_norm.weight"], state["layers.2.mlp_norm.weight"])  # round(8 / 3) is 3


def test_copies_differ_a_little_by_the_seed():
    """Equal copies would have equal gradients in every step, and never learn apart."""
    large = replace(SMALL, hidden=16, heads=4, intermediate=12)
    state = small_state(SMALL)
    one, same, other = (with_noise(tiled(state, SMALL, large), seed) for seed in (3, 3, 4))
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name])
        if tensor.ndim == 2:
            assert not torch.equal(tensor, other[name]), name
    matrix = one["layers.0.mlp_out.weight"]  # the center is 3 to 8
    difference = (matrix[:, 3:9] - matrix[:, [9, 10, 11, 0, 1, 2]]).std()
    assert 0.01 * matrix.std() < difference < 0.1 * matrix.std()
