"""Which part of a model a parameter belongs to; that the norms are right: tests/distributed."""

import pytest

from pretrain.group_norms import group_of


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
