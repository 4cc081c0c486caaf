"""The native encoder for token streams. It projects to the vocabulary only at masked positions.

Shapes: N slots of the stream, R rows of S slots (N = R * S), D hidden, K predictions, V vocabulary padded to a multiple
of 64.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrain.config import View
from pretrain.kernels import PLAIN, Attention, Operations, Rotation, fastest_attention, rotation, tiles_fit
from pretrain.masking import IGNORED, RowGroup
from pretrain.model.attention import DocumentBounds, SpanBounds, cut_bounds, source_ends
from pretrain.model.head import Choices, Prediction, VocabularyLoss, by_group, choices_of
from pretrain.model.model_costs import logit_bytes
from pretrain.model.model_description import EncoderShape
from pretrain.model.transformer_layers import AddNorm, EmbedNorm, LinearGelu, PostNormLayer, PreNormLayer, dropped

_GRAPHS = 2  # of a shape: training and evaluation
Views = tuple[tuple[View, int], ...]  # and how many rows have it
_NEVER = -1.0e4  # bias of the vocabulary's padding: its probability is exactly zero in every precision
_CUTOFF = 2.0  # standard deviations; ModernBERT draws again beyond them
_SEEN_BY_ESM = 1 - 0.15 * 0.8  # a constant of its form, whatever share of tokens a run masks
_INTO_RESIDUAL = ("attention_out.weight", "mlp_out.weight")


def draw_weights(parameters: Iterable[tuple[str, nn.Parameter]], shape: EncoderShape, seed: int) -> None:
    """Draw an encoder's weights, the same on every rank: zero biases, unit norms, and

    - normal(0, init_std) everywhere else, zeros for the padding token; with scaled_init, the deviation of what is added
      to the residual stream is divided by sqrt(2 * layers), as in Megatron-LM (Shoeybi et al., 2019) after GPT-2
      (Radford et al., 2019);
    - ModernBERT: normal(0, init_std) cut off at two standard deviations; scaled in that way always, the head too.
    """
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * shape.layers)
    with torch.no_grad():
        for name, parameter in parameters:
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            elif shape.arch == "modernbert":
                std = shape.init_std / (depth if name.endswith((*_INTO_RESIDUAL, "head_dense.weight")) else 1.0)
                nn.init.trunc_normal_(parameter, 0.0, std, -_CUTOFF * std, _CUTOFF * std, generator=generator)
            else:
                scale = depth if shape.scaled_init and name.endswith(_INTO_RESIDUAL) else 1.0
                parameter.normal_(0.0, shape.init_std / scale, generator=generator)
                if name == "word_embedding":
                    parameter[shape.pad_id].zero_()


def token_dropout(tokens: Tensor, cu_seqlens: Tensor, mask_id: int) -> Tensor:
    """ESM's factors of embeddings (Lin et al., 2023): [N] fp32 for tokens [N] of documents [documents + 1].

    Mask tokens get 0. The others of a document get 0.88, the share that is not masked in ESM's training, divided by
    the document's own share. transformers computes the same for a padded row, but NaN if all tokens are masked.
    """
    masked, lengths = tokens == mask_id, cu_seqlens.diff()
    seen = lengths - F.pad(masked.cumsum(0), (1, 0))[cu_seqlens].diff()
    slots = torch.arange(len(tokens), device=tokens.device, dtype=cu_seqlens.dtype)
    document = torch.bucketize(slots, cu_seqlens, right=True) - 1
    return (_SEEN_BY_ESM * lengths / seen)[document].masked_fill(masked, 0.0)


class Encoder(nn.Module):
    """A language model over a stream of documents, in the form of one of the families of `model.arch`.

    The word embedding is a parameter of this module itself, not of a child: it is used at both ends (tied decoder),
    and ZeRO-3 gathers a module's own parameters for the whole of its forward pass. EuroBERT's decoder is a matrix of
    its own without a bias: there, `decoder_bias` is a constant that only excludes the vocabulary's padding.

    Args:
        z_loss: weight of log(Z)**2 in the loss, see VocabularyLoss.
        backend: of attention; the fastest for the device and precision by default.
        operations: implementation of the other layer operations, see pretrain.kernels.
    """

    def __init__(
        self, shape: EncoderShape, z_loss: float = 0.0, backend: Attention | None = None, operations: Operations = PLAIN
    ):
        super().__init__()
        self.shape, self.z_loss, self.backend, self.operations = shape, z_loss, backend, operations
        d, ids = shape.hidden, shape.padded_vocab_size
        self.word_embedding = nn.Parameter(torch.empty(ids, d))
        if not shape.rotary:
            self.position_embedding = nn.Parameter(torch.empty(shape.first_position + shape.max_positions, d))
            self.type_embedding = nn.Parameter(torch.empty(shape.type_rows, d))
        self.embedding_norm = EmbedNorm(shape, operations) if shape.embedding_norm else None
        layer = PreNormLayer if shape.rotary else PostNormLayer
        self.layers = nn.ModuleList(layer(shape, number, operations) for number in range(shape.layers))
        self.final_norm = AddNorm(shape, operations) if shape.rotary else None
        self.decoder_bias: Tensor
        if shape.tied:
            self.output_embedding = None
            self.head_dense = LinearGelu(d, d, operations, shape.biases)
            self.head_norm = AddNorm(shape, operations)
            self.decoder_bias = nn.Parameter(torch.empty(ids))
        else:
            self.output_embedding = nn.Parameter(torch.empty(ids, d))
            padding = torch.arange(ids) >= shape.vocab_size
            self.register_buffer("decoder_bias", padding * _NEVER, persistent=False)
        self._checkpoints = False
        self._compiled: Callable[..., Prediction] | None = None

    def initialize(self, seed: int) -> None:
        """Draw the weights, see pretrain.model.encoder."""
        draw_weights(self.named_parameters(), self.shape, seed)
        self.reset_padding_rows()

    def reset_padding_rows(self) -> None:
        """Make the vocabulary's padding rows impossible to predict; their gradients are then exactly zero."""
        with torch.no_grad():
            for table in {self.word_embedding, self.decoder_weight}:
                table[self.shape.vocab_size :].zero_()
            self.decoder_bias[self.shape.vocab_size :].fill_(_NEVER)

    def set_rotary_bases(self, rope_theta: float, local_rope_theta: float) -> None:
        """From now on, use these bases of the rotary frequencies; see EncoderShape."""
        self.shape = replace(self.shape, rope_theta=rope_theta, local_rope_theta=local_rope_theta)

    def checkpoint_layers(self) -> None:
        """From now on, store only each layer's input, and repeat the layer in the backward pass with the same dropout.

        Chen et al., "Training deep nets with sublinear memory cost", 2016.
        """
        self._checkpoints = True

    def use(self, operations: Operations, graph_shapes: int = 0) -> None:
        """From now on, compute with these operations; with `graph_shapes`, in compiled graphs, see `compile_graph`."""
        for module in self.modules():
            if "operations" in vars(module):
                vars(module)["operations"] = operations
        self._compiled = None
        if graph_shapes:
            self.compile_graph(graph_shapes)

    @property
    def is_compiled(self) -> bool:
        """Whether losses are computed in compiled graphs."""
        return self._compiled is not None

    def compile_graph(self, shapes: int) -> None:
        """From now on, run a compiled graph for each of `shapes` stream shapes, and another for evaluation.

        Not for ZeRO-3, which removes the parameters between passes.
        """
        dynamo = torch._dynamo.config
        dynamo.recompile_limit = max(dynamo.recompile_limit, _GRAPHS * shapes)
        self._compiled = torch.compile(self._predict, dynamic=False, fullgraph=True)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        seq_len: int,
        places: Tensor | None = None,
        views: Views = (),
        longest: int | None = None,
        most: int | None = None,
    ) -> Tensor:
        """The last layer's states [N, D], or only the states at `places`: [K, D].

        Args:
            tokens, positions: [N] int64.
            cu_seqlens: [documents + 1] int32 document boundaries.
            seq_len: S; documents do not cross multiples of it.
            places: [K] int64. The last layer's MLP runs only there, because the head needs no other states.
            views: the views of consecutive rows; by default the shape's own for all.
            longest: see forward.
            most: a bound on the places in a row; they are then in the order of pretrain.masking.Masked. If attention
                can, the last layer's queries are computed only there, and unused places have other states.
        """
        shape = self.shape
        reaches = tuple({shape.reach(number) for number in range(shape.layers)})
        spans = tuple(self._spans(tokens, cu_seqlens, seq_len, views, reaches, longest or seq_len))
        rotations = self._rotations(positions, reaches)
        x_ND: Tensor
        again_ND: Tensor | None
        x_ND, again_ND = self._embedded(tokens, positions, cu_seqlens)
        if shape.dropout and self.training:
            x_ND = again_ND = dropped(x_ND, shape.dropout)
        checkpoints = self._checkpoints and torch.is_grad_enabled()
        run = functools.partial(checkpoint, use_reentrant=False) if checkpoints else nn.Module.__call__
        for layer in self.layers[:-1]:
            x_ND, again_ND = run(layer, x_ND, again_ND, spans, rotations)
            if checkpoints and self.final_norm:  # one matrix for each layer to keep
                x_ND, again_ND = x_ND + again_ND, None
        if places is not None and most and self._takes_queries(spans):
            places = places.cummax(0).values  # an unused place becomes the one before it
            spans = ((spans[0][0], spans[0][1].with_queries(places, most)),)
        x_ND, again_ND = run(self.layers[-1], x_ND, again_ND, spans, rotations, places)
        return self.final_norm(x_ND, again_ND)[0] if self.final_norm else x_ND

    def _spans(
        self,
        tokens: Tensor,
        cu_seqlens: Tensor,
        seq_len: int,
        views: Views,
        reaches: tuple[int | None, ...],
        longest: int,
    ) -> Iterator[tuple[int, DocumentBounds]]:
        shape, n = self.shape, len(tokens)
        device, dtype = cu_seqlens.device.type, str(self.word_embedding.dtype)
        per_head = shape.hidden // shape.heads
        backend = self.backend or fastest_attention(device, dtype, per_head, shape.dropout)
        kernel = self.operations.window_attention is not None and tiles_fit(per_head)
        tiled = kernel and len(views) < 2 and reaches != (None,) and (backend == "varlen" or device == "cpu")
        first = 0
        for view, rows in views or ((shape.view, n // seq_len),):
            slots = rows * seq_len
            bounds = cu_seqlens if slots == n else cut_bounds(cu_seqlens, first, first + slots)
            ends = None
            if view is View.PREFIX and shape.sep_id is not None:
                ends = source_ends(tokens[first : first + slots], bounds, shape.sep_id)
            bidirectional = tiled and not view.forward
            limits = bounds, slots, seq_len, backend, view.forward, reaches, ends, bidirectional, longest
            yield slots, DocumentBounds.of(*limits)
            first += slots

    def _takes_queries(self, spans: SpanBounds) -> bool:
        """Whether the last layer can compute some queries alone: with varlen, if each sees its whole document."""
        bounds = spans[0][1]
        whole = self.shape.reach(self.shape.layers - 1) is None and not bounds.causal and not bounds.sources
        return len(spans) == 1 and bounds.backend == "varlen" and whole

    def _embedded(self, tokens: Tensor, positions: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        if self.embedding_norm is None:
            x_ND = F.embedding(tokens, self.word_embedding)
            if self.shape.mask_id is not None:
                x_ND = (x_ND * token_dropout(tokens, cu_seqlens, self.shape.mask_id)[:, None]).to(x_ND.dtype)
            return x_ND, x_ND
        if self.shape.rotary:
            return self.embedding_norm(tokens, self.word_embedding, None, None, None)
        places = positions + self.shape.first_position
        return self.embedding_norm(tokens, self.word_embedding, places, self.position_embedding, self.type_embedding[0])

    def _rotations(self, positions: Tensor, reaches: tuple[int | None, ...]) -> dict[int | None, Rotation]:
        shape = self.shape
        if not shape.rotary:
            return {}
        theta = {reach: shape.rope_theta if reach is None else shape.local_rope_theta for reach in reaches}
        per_head, dtype = shape.hidden // shape.heads, self.word_embedding.dtype
        return {reach: rotation(positions, per_head, theta[reach], dtype) for reach in reaches}

    @property
    def decoder_weight(self) -> Tensor:
        """The matrix [V, D] that projects to the vocabulary."""
        return self.word_embedding if self.output_embedding is None else self.output_embedding

    def logits(self, x_KD: Tensor) -> Tensor:
        """Vocabulary logits [K, V] of hidden states [K, D]."""
        return F.linear(self.transformed(x_KD), self.decoder_weight, self.decoder_bias)

    def transformed(self, x_KD: Tensor) -> Tensor:
        """Hidden states [K, D], as input of the decoder."""
        return self.head_norm(self.head_dense(x_KD))[0] if self.shape.tied else x_KD

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        masked_positions: Tensor,
        labels: Tensor,
        seq_len: int,
        longest: int | None = None,
        top: int = 0,
        weights: Tensor | None = None,
        groups: tuple[RowGroup, ...] = (),
    ) -> Prediction | Choices:
        """The sums of the loss over masked positions [K] with labels [K], in the order of pretrain.masking.Masked.

        With `top`: the `top` likeliest tokens at each position instead.

        Args:
            longest: a bound on the documents' lengths; S by default. Flash attention plans its work by it.
            weights: [K] fp32, how much each prediction counts; equally by default.
            groups: rows with other views or objectives; all with the model's own view by default.
        """
        by_view = itertools.groupby(groups, key=lambda group: group.view)
        views = tuple((view, sum(group.rows for group in of_view)) for view, of_view in by_view)
        bound = None if self._compiled else longest  # a compiled graph would be compiled again for each length
        most = max((group.places // group.rows for group in groups), default=len(labels) * seq_len // len(tokens))
        stream = tokens, positions, cu_seqlens, seq_len, masked_positions, views, bound, most
        if top:
            return choices_of(self.logits(self.hidden(*stream)), labels, top)
        device = labels.device
        gpu_bytes = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        most_bytes = logit_bytes(gpu_bytes, self.operations.fused)
        counted = labels, weights, tuple(group.places for group in groups), most_bytes
        if self._compiled:
            torch._dynamo.mark_dynamic(cu_seqlens, 0)  # one graph for any number of documents
            return self._compiled(*counted, *stream)
        return self._predict(*counted, *stream)

    def _predict(
        self, labels: Tensor, weights: Tensor | None, places: tuple[int, ...], most_bytes: int, *stream: Any
    ) -> Prediction:
        x_KD = self.transformed(self.hidden(*stream))
        decoder = self.decoder_weight, self.decoder_bias
        how = self.z_loss, self.operations, weights, places, most_bytes
        loss, *others = VocabularyLoss.apply(x_KD, *decoder, labels, *how)
        # Without detach, torch.compile of torch 2.11 takes the others for differentiable, and fails.
        plain, correct = (other.detach() for other in others)
        return Prediction(loss, plain, correct, by_group((labels != IGNORED).float(), places))
