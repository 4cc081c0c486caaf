"""The native encoder for token streams, in its BERT form, with the vocabulary met at masked positions only.

Shapes: N slots of the stream, R rows of S slots (N = R * S), D hidden, H heads, K predictions, V vocabulary
padded to a multiple of 64.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_prep.format import TokenizerInfo
from pretrain.config import Config
from pretrain.masking.rows import IGNORED
from pretrain.model.attention import DocumentMask, attention

_NEVER = -1.0e4  # bias of the vocabulary's padding: its probability is exactly zero in every precision


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder; vocab_size is the tokenizer's, before padding. causal: no slot sees a later one."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    max_positions: int
    pad_id: int
    norm_eps: float = 1e-12
    init_std: float = 0.02
    causal: bool = False

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // 64) * 64


def encoder_shape(config: Config, tokenizer: TokenizerInfo) -> EncoderShape:
    """The shape that a configuration describes, for the vocabulary of a data set."""
    model = config.model
    return EncoderShape(
        vocab_size=tokenizer.vocab_size,
        layers=model.size.layers,
        hidden=model.size.hidden,
        heads=model.size.heads,
        intermediate=model.size.intermediate or 4 * model.size.hidden,
        max_positions=model.max_positions or config.longest_row,
        pad_id=tokenizer.special_ids["pad"],
        causal=config.causal,
    )


class Prediction(NamedTuple):
    """Sums over the predictions of one stream, fp32 scalars: loss in nats, correct arg-max choices, and how many.

    A tuple, not a dataclass: ZeRO-3 gathers parameters again for the backward pass through hooks on output tensors,
    and it finds those in tuples alone.
    """

    loss: Tensor
    correct: Tensor
    predictions: Tensor


class Layer(nn.Module):
    """Post-norm transformer layer (Vaswani et al., 2017), with query, key and value in one matrix."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        d = shape.hidden
        self.heads = shape.heads
        self.qkv = nn.Linear(d, 3 * d)
        self.attention_out = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d, eps=shape.norm_eps)
        self.mlp_in = nn.Linear(d, shape.intermediate)
        self.mlp_out = nn.Linear(shape.intermediate, d)
        self.mlp_norm = nn.LayerNorm(d, eps=shape.norm_eps)

    def forward(self, x_ND: Tensor, mask: DocumentMask, places: Tensor | None = None) -> Tensor:
        """The states [N, D] after this layer, or those at `places` [K] alone, as many from each row: [K, D]."""
        n, d = x_ND.shape
        q, k, v = self.qkv(x_ND).view(n, 3, self.heads, d // self.heads).unbind(1)
        if places is not None:
            x_ND, q, mask = x_ND.index_select(0, places), q.index_select(0, places), mask.of_queries(places)
        x_ND = self.attention_norm(x_ND + self.attention_out(attention(q, k, v, mask).flatten(1)))
        return self.mlp_norm(x_ND + self.mlp_out(F.gelu(self.mlp_in(x_ND))))


class Encoder(nn.Module):
    """A masked language model, or a causal one, over a stream of documents.

    The word embedding is a parameter of this module itself, not of a child: it is used at both ends (tied decoder),
    and ZeRO-3 gathers a module's own parameters for the whole of its forward pass.
    """

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.shape = shape
        d = shape.hidden
        self.word_embedding = nn.Parameter(torch.empty(shape.padded_vocab_size, d))
        self.position_embedding = nn.Parameter(torch.empty(shape.max_positions, d))
        self.type_embedding = nn.Parameter(torch.empty(2, d))
        self.embedding_norm = nn.LayerNorm(d, eps=shape.norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.head_dense = nn.Linear(d, d)
        self.head_norm = nn.LayerNorm(d, eps=shape.norm_eps)
        self.decoder_bias = nn.Parameter(torch.empty(shape.padded_vocab_size))

    def initialize(self, seed: int) -> None:
        """BERT's initialisation: normal(0, init_std) weights, zero biases, unit norms; the same on every rank."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0 if name.endswith("weight") else 0.0)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(0.0, self.shape.init_std, generator=generator)
            self.word_embedding[self.shape.pad_id].zero_()
            self.neutralize_padding()

    def neutralize_padding(self) -> None:
        """Make the vocabulary's padding rows impossible to predict; their gradients are then exactly zero."""
        with torch.no_grad():
            self.word_embedding[self.shape.vocab_size :].zero_()
            self.decoder_bias[self.shape.vocab_size :].fill_(_NEVER)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        seq_len: int,
        n_documents: int,
        places: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states [N, D], or those at `places` alone: [K, D].

        Args:
            tokens, positions: [N] int64.
            cu_seqlens: [C] int32 document boundaries, N repeated at the end.
            seq_len: S; documents do not cross multiples of it.
            n_documents: documents in the stream, known to the host.
            places: [K] int64, as many from each row, row after row. The last layer then computes no more than those:
                nothing else reaches the head.
        """
        mask = DocumentMask.of(cu_seqlens, len(tokens), seq_len, n_documents, self.shape.causal)
        x_ND = F.embedding(tokens, self.word_embedding) + F.embedding(positions, self.position_embedding)
        x_ND = self.embedding_norm(x_ND + self.type_embedding[0])
        for layer in self.layers[:-1]:
            x_ND = layer(x_ND, mask)
        return self.layers[-1](x_ND, mask, places)

    def logits(self, x_KD: Tensor) -> Tensor:
        """Vocabulary logits [K, V] of hidden states [K, D]."""
        x_KD = self.head_norm(F.gelu(self.head_dense(x_KD)))
        return F.linear(x_KD, self.word_embedding, self.decoder_bias)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        masked_positions: Tensor,
        labels: Tensor,
        seq_len: int,
        n_documents: int,
    ) -> Prediction:
        """The loss over predicting positions [K] with labels [K] (IGNORED where a slot is unused), as sums."""
        logits_KV = self.logits(self.hidden(tokens, positions, cu_seqlens, seq_len, n_documents, masked_positions))
        loss = F.cross_entropy(logits_KV.float(), labels, ignore_index=IGNORED, reduction="sum")
        correct = (logits_KV.detach().argmax(dim=-1) == labels).sum(dtype=torch.float32)
        return Prediction(loss, correct, (labels != IGNORED).sum(dtype=torch.float32))
