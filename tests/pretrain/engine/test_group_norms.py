"""Which part of a model a parameter belongs to; whether the norms are right: test_varying_batches.py."""

import pytest
import torch

from pretrain.engine.gradient_norms import group_of, sum_of_squares


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("word_embedding", "embeddings"),
        ("embedding_norm.weight", "embeddings"),
        ("layers.11.mlp_in.weight", "layer_11"),
        ("head_dense.weight", "head"),
        ("decoder_bias", "head"),
        ("final_norm.weight", "head"),
        ("model.bert.embeddings.word_embeddings.weight", "embeddings"),
        ("model.bert.encoder.layer.3.attention.self.query.weight", "layer_3"),
        ("model.model.layers.02.mlp.Wi.weight", "layer_2"),
        ("model.electra.embeddings_project.weight", "embeddings"),
        ("model.generator_predictions.dense.weight", "head"),
    ],
)
def test_parts(name, group):
    assert group_of(name) == group


def test_sums_of_squares_ask_the_device_for_nothing():
    """Tensors on "meta" have no values to be asked for."""
    meta = torch.device("meta")
    total = sum_of_squares([torch.empty(7, device=meta, dtype=torch.bfloat16), torch.empty(3, device=meta)], meta)
    assert (total.device, total.dtype, total.shape) == (meta, torch.float64, ())
    assert sum_of_squares([], meta).device == meta


def test_sums_over_millions_of_elements_keep_their_digits():
    numbers = torch.rand(5_000_011, generator=torch.Generator().manual_seed(0))
    wanted = numbers.double().square().sum().item()
    assert sum_of_squares([numbers], numbers.device).item() == pytest.approx(wanted, rel=1e-5)
