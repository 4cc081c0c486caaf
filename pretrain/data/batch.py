"""The arrays of one micro-batch: a stream of N = rows * seq_len slots with documents back to back.

A row holds its documents, then its padding. The padding counts as a separate document, so attention never mixes the
two. Shapes depend only on the configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrain.data.checksum import row_factors, row_hashes
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.data.stream import Part
from pretrain.masking import IGNORED, Rows, ToMask, Vocabulary, concatenated_ranges
from pretrain.objectives import Objective

_SOURCE_SHIFT = 16  # the source is in the bits above the epoch, so masks of two sources never share draws


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    seq_len: S, slots of a row.
    tokens [N] int64: ids after masking.
    positions [N] int64: position in the document, from 0.
    cu_seqlens [documents + 1] int32: where documents start and end, padding counted as documents.
    masked_positions [K], labels [K] int64: see pretrain.masking.rows.Masked.
    n_tokens, n_replaced: see LaidOut. n_predictions: labels that are not IGNORED.
    to_mask: input of masking on the device (pretrain.masking.rows.Masked); there are then no predictions yet.
    """

    seq_len: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    masked_positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    n_tokens: int
    n_predictions: int
    n_replaced: int
    to_mask: ToMask | None = None

    def checksum(self) -> int:
        """The sum of the hashes of the rows, below 2**32 times their number; see pretrain.data.checksum."""
        hashes = row_hashes(self.tokens, self.masked_positions, self.labels, row_factors(self.seq_len))
        return int(hashes.sum())

    def document_lengths(self, pad: int) -> NDArray[np.int64]:
        """Tokens of each document, specials included, padding (id `pad`) not counted."""
        bounds = self.cu_seqlens.astype(np.int64)
        return np.diff(bounds)[self.tokens[bounds[:-1]] != pad]


@dataclass(frozen=True)
class LaidOut:
    """Rows laid out, before masking.

    rows: R rows of S slots.
    ends [D] int64: where documents end in the stream, padding counted as documents.
    n_tokens: slots that hold a token or special token. n_replaced: tokens that replace damaged ones.
    """

    rows: Rows
    ends: NDArray[np.int64]
    n_tokens: int
    n_replaced: int

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each slot in its document: [N]."""
        lengths = np.diff(self.ends, prepend=0)
        return concatenated_ranges(np.zeros(len(lengths), dtype=np.int64), lengths)

    def masked(self, objective: Objective, rate: float) -> Batch:
        """The batch of these rows with `rate` of them masked."""
        masked = objective(self.rows, rate)
        return Batch(
            seq_len=self.rows.tokens.shape[1],
            tokens=masked.tokens,
            positions=self.positions,
            cu_seqlens=np.concatenate([[0], self.ends]).astype(np.int32),
            masked_positions=masked.positions,
            labels=masked.labels,
            n_tokens=self.n_tokens,
            n_predictions=int((masked.labels != IGNORED).sum()),
            n_replaced=self.n_replaced,
            to_mask=masked.to_mask,
        )


def max_documents(rows: int, seq_len: int) -> int:
    """Upper bound on the documents of a stream: one-token documents, and padding in each row as one more."""
    return rows * (seq_len // (SPECIALS_PER_PIECE + 1) + 1)


def lay_out(parts: Sequence[Part], n_rows: int, seq_len: int, vocabulary: Vocabulary) -> LaidOut:
    """Lay rows out as [CLS] piece [SEP] [CLS] piece [SEP] ... padding; missing rows, up to `n_rows`, become padding."""
    tokens = np.full(n_rows * seq_len, vocabulary.pad, dtype=np.int64)
    flags = np.zeros(n_rows * seq_len, dtype=np.uint8)
    row_ids = np.zeros((n_rows, 3), dtype=np.int64)
    ends, filled = [], np.zeros(n_rows, dtype=np.int64)
    row = n_replaced = 0
    for part in parts:
        starts, lengths, counts = part.window.pieces(part.numbers)
        sizes = lengths + SPECIALS_PER_PIECE
        before = np.cumsum(sizes) - sizes
        first = np.cumsum(counts) - counts
        numbers = np.arange(row, row + len(part))
        slots = before - np.repeat(before[first] - numbers * seq_len, counts)
        pieces, replaced = part.window.tokens(starts, lengths)
        tokens[slots] = vocabulary.cls
        inside = concatenated_ranges(slots + 1, lengths)
        tokens[inside] = pieces.tokens
        if pieces.flags is not None:
            flags[inside] = pieces.flags
        tokens[slots + 1 + lengths] = vocabulary.sep
        row_ids[numbers, 0] = part.source << _SOURCE_SHIFT | part.epoch
        row_ids[numbers, 1] = part.window_number
        row_ids[numbers, 2] = part.numbers
        ends.append(slots + sizes)
        filled[numbers] = np.add.reduceat(sizes, first)
        row, n_replaced = row + len(part), n_replaced + replaced
    padded = np.flatnonzero(filled < seq_len)
    ends.append((padded + 1) * seq_len)
    return LaidOut(
        Rows(tokens.reshape(n_rows, seq_len), row_ids, flags.reshape(n_rows, seq_len)),
        np.sort(np.concatenate(ends), kind="stable"),
        int(filled.sum()),
        n_replaced,
    )


def build_batch(
    parts: Sequence[Part], n_rows: int, seq_len: int, vocabulary: Vocabulary, objective: Objective, rate: float
) -> Batch:
    """Lay rows out and mask `rate` of them; missing rows (the tail of an evaluation) become padding."""
    return lay_out(parts, n_rows, seq_len, vocabulary).masked(objective, rate)
