"""Weights of a larger encoder from a smaller encoder of the same family.

The place of each weight follows ModernBERT-large (Warner et al., 2024, appendix "Weight tiling"): the smaller matrix is
in the center of the larger one, the edges continue it with wraparound, and layers repeat as in Gopher (Rae et al.,
2021). Scale and noise follow Net2Net (Chen et al., 2016): a weight is divided by the number of copies of its input, so
that the larger model begins with nearly the same outputs, and noise makes copies differ, so that they learn apart.
"""

import torch
from torch import Tensor

from pretrain.model.encoder import Encoder
from pretrain.model.model_description import EncoderShape

_NOISE = 0.02  # standard deviations of a matrix

_Weights = dict[str, Tensor]


def tiled(state: _Weights, small: EncoderShape, large: EncoderShape) -> _Weights:
    """A native state of the larger shape from a state of the smaller one."""
    with torch.device("meta"):
        names = [*Encoder(large).state_dict()]
    wide = _Widening(small, large)
    weights = {}
    for name in names:
        source = _source(name, small, large)
        # ModernBERT's first layer has no norm before its attention: the norm of the embeddings precedes it.
        weights[name] = wide.widened(name, state[source if source in state else "embedding_norm.weight"])
    return weights


def with_noise(state: _Weights, seed: int) -> _Weights:
    """Add normal noise to the matrices of a state."""
    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(matrix.shape, generator=generator) for name, matrix in state.items() if matrix.ndim == 2}
    return state | {name: state[name] + _NOISE * state[name].std() * drawn for name, drawn in noise.items()}


def _source(name: str, small: EncoderShape, large: EncoderShape) -> str:
    """The smaller model's name of a weight: layer i of n takes layer round(i * m / n) of m."""
    if not name.startswith("layers."):
        return name
    _, number, rest = name.split(".", 2)
    return f"layers.{min(round(int(number) * small.layers / large.layers), small.layers - 1)}.{rest}"


def wrapped(small: int, large: int) -> Tensor:
    """The item, of `small` ones, at each of `large` places: all in the center, then continued on both sides."""
    return (torch.arange(large) - (large - small) // 2) % small


class _Widening:
    """The indexes of rows and columns. Heads stay whole."""

    def __init__(self, small: EncoderShape, large: EncoderShape) -> None:
        per_head = small.hidden // small.heads
        heads = wrapped(small.heads, large.heads)[:, None] * per_head + torch.arange(per_head)
        units = wrapped(small.intermediate, large.intermediate)
        self._stream = wrapped(small.hidden, large.hidden)
        self._outputs = {"qkv": heads.flatten(), "mlp_in": units}
        self._inputs = {"attention_out": heads.flatten(), "mlp_out": units}
        self._parts = {"qkv": small.hidden, "mlp_in": small.intermediate}  # rows of one of several merged matrices

    def widened(self, name: str, tensor: Tensor) -> Tensor:
        """A weight with the rows and columns of the larger shape."""
        if "." not in name:  # a table of embeddings, or the decoder's bias
            return tensor[:, self._stream] if tensor.ndim == 2 else tensor
        part = name.split(".")[-2]
        rows, columns = self._outputs.get(part, self._stream), self._inputs.get(part, self._stream)
        tensor = torch.cat([part_rows[rows] for part_rows in tensor.split(self._parts.get(part, len(tensor)))])
        if tensor.ndim == 2:
            return tensor[:, columns] / _copies(columns)
        return tensor / _copies(rows) if part == "head_norm" else tensor  # it feeds the decoder, whose table is tied


def _copies(index: Tensor) -> Tensor:
    """How often each item of an index occurs in it."""
    return torch.bincount(index)[index]
