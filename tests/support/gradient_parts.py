"""Gradient norms of a two-layer BERT's parts, by plain numpy."""

from collections.abc import Mapping, Sequence

import numpy as np

LAYER = [
    f"{name}.{part}"
    for name in ("qkv", "attention_out", "attention_norm", "mlp_in", "mlp_out", "mlp_norm")
    for part in ("weight", "bias")
]
PARTS = {
    "embeddings": ["word_embedding", "position_embedding", "type_embedding"]
    + ["embedding_norm.weight", "embedding_norm.bias"],
    "layer_0": [f"layers.0.{name}" for name in LAYER],
    "layer_1": [f"layers.1.{name}" for name in LAYER],
    "head": ["head_dense.weight", "head_dense.bias", "head_norm.weight", "head_norm.bias", "decoder_bias"],
}


def norm(gradients: Sequence[np.ndarray]) -> np.ndarray:
    return np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients))


def norms_of_parts(gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By the names that gradients_worker gives them, from the gradients of all parameters by name."""
    assert sum(map(len, PARTS.values())) == len(gradients)
    return {f"norm of {part}": norm([gradients[name] for name in names]) for part, names in PARTS.items()}
