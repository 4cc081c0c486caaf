"""Floating-point operations of a training step, from the formula.

What counts is what the model needs, as publications count it: multiplications and additions of matrix products, thrice
those of the forward pass (Chinchilla, Hoffmann et al., 2022, appendix F; PaLM, Chowdhery et al., 2022, appendix B), for
real tokens, the pairs of tokens that see each other, and predictions; padding and recomputation do not count. For a
token: 6 * N + 6 * p * (V * d + d * d) + 12 * d * (tokens that it sees, summed over layers), N being the weights of the
layers' matrices and p the share of tokens that are predicted.
"""

import numpy as np
from numpy.typing import NDArray

from pretrain.model.encoder_shape import EncoderShape

# Dense bf16 operations a second, in units of 10**12, of the makers' data sheets, by a part of the device's name.
PEAK_TFLOPS = {"H100 PCIe": 756, "H100": 989, "H200": 989, "GH200": 989, "B200": 2250, "A100": 312, "L40S": 362}


def step_flops(shape: EncoderShape, lengths: NDArray[np.int64], predictions: int) -> float:
    """Floating-point operations of a step, forward and backward.

    Args:
        lengths: [D] tokens of each document, specials included, padding left out.
        predictions: labels that are not ignored.
    """
    pairs = {reach: pairs_seen(lengths, reach, shape.causal) for reach in set(_reaches(shape))}
    attention = 12 * shape.hidden * sum(pairs[reach] for reach in _reaches(shape))
    head = shape.hidden * (shape.vocab_size + shape.hidden)
    return float(6 * lengths.sum() * layer_weights(shape) * shape.layers + attention + 6 * predictions * head)


def layer_weights(shape: EncoderShape) -> int:
    """Weights of a layer's matrices."""
    matrices = 3 if shape.arch == "modernbert" else 2
    return shape.hidden * (4 * shape.hidden + matrices * shape.intermediate)


def pairs_seen(lengths: NDArray[np.int64], reach: int | None, causal: bool) -> float:
    """Pairs (token, token that it sees, itself included) within documents [D]."""
    if causal:
        return float((lengths * (lengths + 1) / 2).sum())
    if reach is None:
        return float((lengths**2).sum())
    inside = np.minimum(lengths, reach + 1)
    return float((inside**2 + (lengths - inside) * (2 * reach + 1)).sum())


def peak_tflops(device_name: str) -> int | None:
    """Dense bf16 peak of a device, in 10**12 operations a second; None where it is not known."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device_name), None)


def _reaches(shape: EncoderShape) -> list[int | None]:
    return [shape.reach(layer) for layer in range(shape.layers)]
