"""Attention within the documents of a stream, behind one function. pretrain.kernels.backend_choice chooses it.

Backends: `varlen` runs over the documents (flash attention, on CUDA in 16-bit precision); `sdpa` over the rows under a
mask (anywhere, in any precision), on a CPU document by document where that is less work. For layers with a local
window, `sdpa` computes blocks of queries and skips distant keys (Beltagy et al., "Longformer", 2020): queries in blocks
of B slots see keys in W = B + 2 * reach slots.

A document can begin with a source, whose tokens see all of it. The tokens after it see the source and each other from
left to right: prefix attention (Dong et al., "UniLM", 2019; Raffel et al., "T5", 2020). `varlen` computes it as two
calls, one causal over the documents, one over the documents cut after their sources.
Shapes: N slots of the stream, R rows of S slots, H heads of E dimensions.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.kernels import Attention, Tiles

WORTH_CUTTING = 0.75  # share of a row's pairs below which single documents are faster on a CPU than a masked row
_LONG_ROW = 1024  # from this row length on, a mask always costs more than single documents
_NONE = -1  # document number of the slots that fill up the stream


def band_width(reach: int) -> int:
    """W: keys compared with each query of a block of B = 2 * reach slots."""
    return 4 * reach


def band_mask(document: Tensor, reach: int) -> Tensor:
    """Mask of the W keys of a block's queries, from document numbers [N]: [blocks, 1, B, W] bool."""
    block, width = 2 * reach, band_width(reach)
    filled = F.pad(document, (0, -len(document) % block), value=_NONE)
    queries = filled.view(-1, block, 1)
    keys = F.pad(filled, (reach, reach), value=_NONE).unfold(0, width, block).unsqueeze(1)
    ahead = torch.arange(-reach, width - reach, device=document.device)
    ahead = ahead - torch.arange(block, device=document.device)[:, None]
    return ((queries == keys) & (ahead.abs() <= reach)).unsqueeze(1)


def band_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, reach: int, dropout: float) -> Tensor:
    """Attention of q, k, v [N, H, E] under a band_mask: [N, H, E]."""
    n, block, width = len(q), 2 * reach, band_width(reach)
    fill = -n % block
    q = F.pad(q, (0, 0, 0, 0, 0, fill)).unflatten(0, (-1, block)).transpose(1, 2)
    k, v = (F.pad(x, (0, 0, 0, 0, reach, reach + fill)).unfold(0, width, block).transpose(2, 3) for x in (k, v))
    out = _row_attention(q, k, v, mask, dropout)
    return out.transpose(1, 2).flatten(0, 1)[:n]


def _row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention of each row, [..., S, E]. On a CPU torch's backward pass is faster in fp32 for short rows."""
    wide = q.dtype == torch.bfloat16 and q.device.type == "cpu"
    query, key, value = (x.float() if wide else x for x in (q, k, v))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout).to(q.dtype)


Reach = int | None


def source_ends(tokens: Tensor, cu_seqlens: Tensor, sep: int) -> Tensor:
    """Where the source of each document ends: after its first [SEP], or with the document: [documents] int32.

    Args:
        tokens: [N] ids. cu_seqlens: [documents + 1] int32 document boundaries. sep: id of [SEP].
    """
    passed = (tokens == sep).cumsum(0)
    first = torch.searchsorted(passed, F.pad(passed, (1, 0))[cu_seqlens[:-1]] + 1)
    return torch.minimum(first + 1, cu_seqlens[1:]).int()


@dataclass(frozen=True)
class SourceSlots:
    """The sources of documents.

    inside [N] bool: whether a slot is in a source.
    cu_seqlens [2 * documents + 1] int32: boundaries of documents that are cut after their sources; parts may be empty.
    """

    inside: Tensor
    cu_seqlens: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, document: Tensor, ends: Tensor) -> "SourceSlots":
        """The sources that end at `ends` [documents], from boundaries and the number of each slot's document [N]."""
        slots = torch.arange(len(document), device=ends.device, dtype=ends.dtype)
        cut = torch.stack([cu_seqlens[:-1], ends], dim=1).flatten()
        return cls(slots < ends[document], torch.cat([cut, cu_seqlens[-1:]]))


@dataclass(frozen=True)
class DocumentBounds:
    """The keys that each query attends to; made once per batch.

    cu_seqlens [documents + 1] int32: document boundaries.
    seq_len: S; documents do not cross multiples of it.
    masks: by reach, the mask for sdpa: [R, 1, S, S] bool; None without a restriction.
    lengths: of the documents, if sdpa computes each separately; masks are then [L, L], L being the longest.
    banded: whether sdpa computes layers with a reach by blocks; their mask is then a band_mask.
    sources: beginnings of documents that see each other in both directions, if any.
    tiles: of the documents, if a kernel computes the layers with a reach.
    longest: a bound on the documents' lengths, for varlen, whose work depends on it; S if None.
    queries: of a layer that computes some alone: their bounds as cu_seqlens, and the most of a document.
    """

    backend: Attention
    cu_seqlens: Tensor
    seq_len: int
    causal: bool
    masks: dict[Reach, Any]
    lengths: list[int] | None = None
    banded: bool = False
    sources: SourceSlots | None = None
    tiles: Tiles | None = None
    longest: int | None = None
    queries: tuple[Tensor, int] | None = None

    @classmethod
    def of(
        cls,
        cu_seqlens: Tensor,
        n: int,
        seq_len: int,
        backend: Attention,
        causal: bool = False,
        reaches: tuple[Reach, ...] = (None,),
        source_ends: Tensor | None = None,
        tiled: bool = False,
        longest: int | None = None,
    ) -> "DocumentBounds":
        """Create the bounds from document boundaries [documents + 1], for layers with these reaches.

        With `source_ends` [documents] int32, tokens before these ends see each other; `causal` holds for the others.
        `tiled`: a kernel computes the layers with a reach.
        """
        tiles = Tiles.of(cu_seqlens, n) if tiled else None
        if backend == "varlen" and source_ends is None:
            return cls(backend, cu_seqlens, seq_len, causal, {}, tiles=tiles, longest=longest)
        slots = torch.arange(n, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        document = torch.bucketize(slots, cu_seqlens, right=True)
        sources = None if source_ends is None else SourceSlots.of(cu_seqlens, document - 1, source_ends)
        if backend == "varlen":
            return cls(backend, cu_seqlens, seq_len, causal, {}, sources=sources, longest=longest)
        lengths = None if sources else _worth_cutting(cu_seqlens, n, seq_len)
        pairs = sum(length**2 for length in lengths) if lengths else n * seq_len
        banded = not causal and any(reach is not None and pairs > n * band_width(reach) for reach in reaches)
        single = _one_per_row(cu_seqlens, n, seq_len)

        def mask(reach: Reach) -> Tensor | None:
            if banded and reach is not None:
                return band_mask(document, reach)
            if lengths:
                longest = max(lengths)
                row_mask = _row_mask(torch.zeros_like(document[:longest]), longest, True, causal, reach)
                return None if row_mask is None else row_mask[0, 0]
            return _row_mask(document, seq_len, single, causal, reach, sources)

        masks = {reach: mask(reach) for reach in reaches}
        return cls(backend, cu_seqlens, seq_len, causal, masks, lengths, banded, sources, tiles)

    def with_queries(self, places: Tensor, most: int) -> "DocumentBounds":
        """The same, for the queries at increasing places [K] alone, at most `most` in a document."""
        bounds = torch.searchsorted(places.to(self.cu_seqlens.dtype), self.cu_seqlens, out_int32=True)
        return replace(self, queries=(bounds, most))


SpanBounds = tuple[tuple[int, DocumentBounds], ...]
"""The slots of consecutive parts of a stream, each with its own view, and what their queries attend to."""


def cut_bounds(cu_seqlens: Tensor, first: int, last: int) -> Tensor:
    """The bounds of the documents in the slots from `first` to before `last`, relative to `first`.

    On a GPU the documents outside stay as empty ones, because the host does not know how many there are.
    """
    cut = cu_seqlens.clamp(first, last) - first
    known = cut.device.type == "cpu" and not torch.compiler.is_compiling()
    return cut.unique_consecutive() if known else cut


def attention_of_spans(
    q: Tensor, k: Tensor, v: Tensor, spans: SpanBounds, reach: Reach = None, dropout: float = 0.0
) -> Tensor:
    """`attention` of each span of a stream, q [N, H, E] and k, v [N, G, E] to [N, H, E]; q of a single span's queries.

    Each of G heads of key and value serves H / G heads of the query (Ainslie et al., "GQA", 2023).
    """
    if (group := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    if len(spans) == 1:
        return attention(q, k, v, spans[0][1], reach, dropout)
    sizes = [slots for slots, _ in spans]
    parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), spans, strict=True)
    return torch.cat([attention(q, k, v, documents, reach, dropout) for q, k, v, (_, documents) in parts])


def attention(
    q: Tensor, k: Tensor, v: Tensor, documents: DocumentBounds, reach: Reach = None, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention: q, k, v [N, H, E] to [N, H, E]; with `documents.queries`, q [K, H, E] to [K, H, E].

    Args:
        reach: how many tokens a token attends to on either side, one of the reaches of `documents`.
        dropout: share of the attention weights that are zeroed; only sdpa supports it.
    """
    if documents.backend == "varlen":
        left, right = (-1, -1) if reach is None else (reach, reach)
        window = (left, 0 if documents.causal else right)
        bounds, longest = documents.cu_seqlens, documents.longest or documents.seq_len
        of_queries, most = documents.queries or (bounds, longest)
        out: Tensor = _varlen()(q, k, v, of_queries, bounds, most, longest, window_size=window)
        if documents.sources:
            bounds = documents.sources.cu_seqlens
            among = _varlen()(q, k, v, bounds, bounds, longest, longest, window_size=(left, right))
            out = torch.where(documents.sources.inside[:, None, None], among, out)
        return out
    if documents.banded and reach is not None:
        return band_attention(q, k, v, documents.masks[reach], reach, dropout)
    if documents.lengths is not None:
        return _one_by_one(q, k, v, documents.lengths, documents.masks[reach], dropout)
    rows = len(q) // documents.seq_len
    q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v))
    out = _row_attention(q, k, v, documents.masks[reach], dropout)
    return out.transpose(1, 2).flatten(0, 1)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], mask: Tensor | None, dropout: float) -> Tensor:
    """Attention of each document separately; `mask` [S, S] bool fits the longest possible document."""
    by_document = zip(*(x.transpose(0, 1).unsqueeze(0).split(lengths, dim=2) for x in (q, k, v)), strict=True)
    parts = []
    for q_one, k_one, v_one in by_document:
        length = q_one.shape[2]
        seen = None if mask is None else mask[:length, :length]
        out = _row_attention(q_one, k_one, v_one, seen, dropout)
        parts.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(parts)


def _worth_cutting(cu_seqlens: Tensor, n: int, seq_len: int) -> list[int] | None:
    """The documents' lengths if a CPU computes them faster one by one: documents are short or the mask is large.

    On a GPU the host does not know the lengths.
    """
    if torch.compiler.is_compiling() or cu_seqlens.device.type != "cpu" or _one_per_row(cu_seqlens, n, seq_len):
        return None
    lengths = cu_seqlens.diff().long()
    few = int(lengths.square().sum()) < WORTH_CUTTING * n * seq_len
    return lengths.tolist() if few or seq_len >= _LONG_ROW else None


def _one_per_row(cu_seqlens: Tensor, n: int, seq_len: int) -> bool:
    """Whether each row is one document. Always false in a compiled graph, which serves any number of documents."""
    return not torch.compiler.is_compiling() and len(cu_seqlens) - 1 == n // seq_len


def _row_mask(
    document: Tensor, seq_len: int, single: bool, causal: bool, reach: Reach, sources: SourceSlots | None = None
) -> Tensor | None:
    """The keys of a row that its queries attend to, from document numbers [N]: [R, 1, S, S]; None for all."""
    if single and not causal and (reach is None or reach >= seq_len - 1):
        return None
    document = document.view(-1, 1, seq_len)
    sees = document[..., :, None] == document[..., None, :]
    place = torch.arange(seq_len, device=document.device, dtype=torch.int32)
    ahead = place - place[:, None]
    if causal and sources:
        sees &= (ahead <= 0) | sources.inside.view(-1, 1, 1, seq_len)
    elif causal:
        sees &= ahead <= 0
    if reach is not None:
        sees &= ahead.abs() <= reach
    return sees


def _varlen() -> Any:
    from pretrain.kernels import varlen_attention  # takes a second, and only a GPU needs it

    return varlen_attention
