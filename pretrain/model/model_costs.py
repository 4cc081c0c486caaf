"""Costs of a native encoder, from formulas: floating-point operations of a step, parameters, activation memory.

Operations count as in publications: multiplications and additions of matrix products, three times the forward pass
(Hoffmann et al., "Chinchilla", 2022, appendix F; Chowdhery et al., "PaLM", 2022, appendix B), for real tokens, the
pairs of tokens that attend to each other, and predictions. Padding and recomputation do not count. With prefix
attention, all pairs of a document count, because the lengths do not say where its source ends.

Memory: what autograd stores for a layer is counted operation by operation, as pretrain.kernels computes them and
torch.nn.attention.varlen attends: a layer of BERT stores 8 N D + 2 N I elements, one of ModernBERT 10 N D + 4 N I, and
8 N D + 3 N I with the Triton kernels. RMSNorm counts as on a GPU; on a CPU, torch keeps more of it. Korthikanti et al.,
"Reducing activation recomputation in large transformer models", 2022, count a layer of GPT in the same way.

Shapes: N slots of a micro-batch, K predictions, D hidden, I width of the MLP, H heads, V padded vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.config import View
from pretrain.model.model_description import Description, EncoderShape

KINDS = ("matrix", "embedding", "vector")  # parameter groups of a native encoder (pretrain.optim), in order
_STATISTICS = 8  # bytes a row: center and scale of a norm, fp32

# Dense bf16 operations a second, in units of 10**12, of the makers' data sheets, by a part of the device's name.
PEAK_TFLOPS = {
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "B200": 2250,
    "A100": 312,
    "L40S": 362,
}


def logit_bytes(gpu_bytes: int | None, fused: bool) -> int:
    """The memory limit for logits: 1 GiB; with the Triton kernels a sixteenth of the GPU's memory, from 1 to 4 GiB.

    It is a power of two, because it decides the order of sums, and GPUs of one model differ by a few MB. Without the
    kernels there are also fp32 copies of the logits.
    """
    share = gpu_bytes // 16 if gpu_bytes and fused else 0
    return min(max(1 << share.bit_length() >> 1, 1 << 30), 4 << 30)


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


@dataclass(frozen=True)
class Sizes:
    """Elements of each parameter, in the order of pretrain.optim.parameter_groups, kind by kind.

    layers: the layer of each matrix. tied: whether the vocabulary matrix is the word embedding.
    """

    by_kind: dict[str, tuple[int, ...]]
    layers: tuple[int, ...]
    tied: bool = True

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(sum(numels) for numels in self.by_kind.values())

    @property
    def groups(self) -> list[tuple[str, tuple[int, ...]]]:
        """The kinds that have parameters."""
        return [(kind, numels) for kind, numels in self.by_kind.items() if numels]

    @property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max(max(numels) for _, numels in self.groups)


@dataclass(frozen=True)
class _Streams:
    """A micro-batch, and how it is computed; see EncoderCosts.activations."""

    slots: int
    predictions: int
    seq_len: int
    element: int
    fused: bool
    masked: bool
    gpu_bytes: int | None
    bidirectional: bool


@dataclass(frozen=True)
class Activations:
    """Bytes of a pass.

    kept: between the forward and the backward pass, with the gradient of the vocabulary matrix.
    head: for the logits and their loss, in addition to the layers.
    layer: of one layer's backward pass, and of its forward pass where that is repeated.
    """

    kept: int
    head: int
    layer: int

    @property
    def peak(self) -> int:
        """The peak."""
        return self.kept + max(self.head, self.layer)


class EncoderCosts:
    """Operations, parameters and activation memory of an encoder."""

    def __init__(self, shape: EncoderShape):
        self.shape = shape
        self._reaches = [shape.reach(layer) for layer in range(shape.layers)]

    @classmethod
    def of(cls, description: Description) -> "EncoderCosts | None":
        """The costs of a described model; None if they are not known (`arch: auto`)."""
        return None if description["arch"] == "auto" else cls(EncoderShape(**description))

    def step_flops(self, lengths: NDArray[np.int64], predictions: int, causal: bool | None = None) -> float:
        """Floating-point operations of a step, forward and backward.

        Args:
            lengths: [D] tokens of each document, specials included, padding left out.
            predictions: labels that are not ignored.
            causal: whether the documents have a causal view; as the shape says by default.
        """
        shape, causal = self.shape, self.shape.causal if causal is None else causal
        pairs = {reach: pairs_seen(lengths, reach, causal) for reach in set(self._reaches)}
        attention = 12 * shape.hidden * sum(pairs[reach] for reach in self._reaches)
        head = shape.hidden * (shape.vocab_size + shape.tied * shape.hidden)
        weights = sum(_layer_matrices(shape))
        return float(6 * lengths.sum() * weights * shape.layers + attention + 6 * predictions * head)

    @property
    def sizes(self) -> Sizes:
        """Elements of the parameters."""
        shape = self.shape
        d, wide, ids, head = shape.hidden, shape.intermediate, shape.padded_vocab_size, shape.tied
        matrices = _layer_matrices(shape) * shape.layers + (d * d,) * head
        tables = [ids * d] * (2 - head)
        if not shape.rotary:
            tables += [(shape.first_position + shape.max_positions) * d, shape.type_rows * d]
        norms = (2 * shape.layers + 1 + head) * (1 + shape.biases)
        biases = [3 * d, d, wide, d] * shape.layers + [d] if shape.biases else []
        vectors = [d] * norms + biases + [ids] * head
        layers = (*(layer for layer in range(shape.layers) for _ in range(4)), *[shape.layers - 1] * head)
        return Sizes(dict(zip(KINDS, (matrices, tuple(tables), tuple(vectors)), strict=True)), layers, head)

    def activations(
        self,
        slots: int,
        predictions: int,
        seq_len: int,
        element: int,
        fused: bool = False,
        checkpointing: bool = False,
        masked: bool = False,
        gpu_bytes: int | None = None,
        bidirectional: bool | None = None,
    ) -> Activations:
        """Memory of the passes of a micro-batch.

        Args:
            slots: N. predictions: K. seq_len: slots of a row. element: bytes of an activation.
            fused: with the Triton kernels. checkpointing: layers are repeated in the backward pass.
            masked: attention runs over rows under a mask (sdpa), not over documents (varlen).
            gpu_bytes: memory of the GPU, see logit_bytes; None if it is not known.
            bidirectional: whether all rows have this view; as the shape says by default.
        """
        shape, both = self.shape, self.shape.view is View.BIDIRECTIONAL if bidirectional is None else bidirectional
        of = _Streams(slots, predictions, seq_len, element, fused, masked, gpu_bytes, both)
        layers = [_layer(shape, of, number) for number in range(shape.layers)]
        inputs = slots * shape.hidden * element
        head_kept, head = _head(shape, of)
        kept = (inputs + _STATISTICS * slots) * shape.embedding_norm + _rotations(shape, of) + head_kept
        kept += _dropped(shape, of, slots)
        working = slots * element * (shape.hidden + (2 if shape.gated else 1) * shape.intermediate)
        if not checkpointing:
            return Activations(kept + sum(layers), head, working)
        return Activations(kept + shape.layers * inputs, head, max(layers) - inputs + working)


def _layer_matrices(shape: EncoderShape) -> tuple[int, int, int, int]:
    """Elements of a layer's four matrices."""
    d, wide = shape.hidden, shape.intermediate
    return sum(shape.stacked["qkv"]) * d, d * d, (2 if shape.gated else 1) * d * wide, d * wide


def _layer(shape: EncoderShape, of: _Streams, number: int) -> int:
    """Bytes that a layer keeps, its input included; the last one's MLP, and some queries, are at predicted slots alone.

    The queries are with varlen, if all see their whole documents.
    """
    n, d, wide, b = of.slots, shape.hidden, shape.intermediate, of.element
    places = of.predictions if number == shape.layers - 1 else n
    some = places < n and not of.masked and shape.reach(number) is None and of.bidirectional
    queries = places if some else n
    attention = 2 * n * d * b + queries * (2 * d * b + 4 * shape.heads)  # fp32 log-sum-exp of each head
    grouped = shape.key_heads < shape.heads  # key and value are then copied for the heads of a group
    if of.masked:
        attention += n * of.seq_len * b
    elif shape.view is View.PREFIX:  # the output and statistics of a second call, for the sources
        attention += n * (d * b + 4 * shape.heads)
    picked = 0 if places == n else places * d * b
    if not shape.rotary:
        mlp = places * (3 * d + 2 * wide) * b + 2 * _STATISTICS * places
        return n * d * b + attention + picked + mlp + _dropped(shape, of, 2 * places)
    turned = 0 if of.fused or grouped else (2 - some) * n * d * b
    statistics = _STATISTICS // (1 + shape.rms_norm)
    before = n * d * b + ((n * d * b + statistics * n) if number or not shape.embedding_norm else 0)
    kept = 2 if not shape.gated else 3 if of.fused and not shape.rms_norm else 4  # of the MLP's width
    mlp = places * (2 * d + kept * wide) * b + statistics * places
    return before + attention + turned + picked + mlp + _dropped(shape, of, places, wide)


def _dropped(shape: EncoderShape, of: _Streams, rows: int, wide: int = 0) -> int:
    """Masks of dropout over [rows, D], and [rows, I] with the remaining values."""
    return rows * (shape.hidden + wide * (1 + of.element)) if shape.dropout else 0


def _rotations(shape: EncoderShape, of: _Streams) -> int:
    """Cosines and sines [N, E / 2] of each kind of layer."""
    if not shape.rotary:
        return 0
    kinds = len({shape.reach(number) for number in range(shape.layers)})
    return kinds * of.slots * (shape.hidden // shape.heads) * of.element


def _head(shape: EncoderShape, of: _Streams) -> tuple[int, int]:
    """(bytes kept, further bytes while the loss is computed).

    Kept are the inputs of its two norms, the linear layer and the GELU, and the gradients that the loss has made. The
    loss takes fp32 copies of the logits twice, in plain torch on a GPU; in the first part, before there are gradients
    of the vocabulary matrix.
    """
    k, d, v, b = of.predictions, shape.hidden, shape.padded_vocab_size, of.element
    rows = min(k, max(1, logit_bytes(of.gpu_bytes, of.fused) // (v * b)))
    logits, copies = rows * v * b, rows * v * (0 if of.fused else 8 if b < 4 else 4)
    of_matrix = v * d * b + 4 * v
    kept = (3 * shape.tied + shape.rotary) * k * d * b + (shape.tied + shape.rotary) * _STATISTICS * k
    return kept + k * d * b + of_matrix, logits + max(0, copies - (0 if k > rows else of_matrix))
