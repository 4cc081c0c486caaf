"""Readable view of batches: documents and masks of each row, the difference of two batches, masks of a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrain.config import OBJECTIVES, Config, ObjectiveKind
from pretrain.data.batch import Batch, LaidOut
from pretrain.data.packing import SPECIALS_PER_PIECE
from pretrain.masking import IGNORED, MaskedTokens, RowGroup, Rows, TokenFlag, Vocabulary, cached_weights, mask_rate

Replaced = Literal["mask", "random", "kept", "next"]


@dataclass(frozen=True)
class ShownPrediction:
    """A predicted token: its position in the document, its id, and how it was replaced.

    kind: the model sees [MASK], a random token, or the token itself; "next": the slot before it, which does not see it,
        predicts it.
    """

    place: int
    label: int
    kind: Replaced


@dataclass(frozen=True)
class BatchDocument:
    """A document, or a piece of a long one, in a row. Specials are included; `slot` is its first slot in the row."""

    slot: int
    original: list[int]
    seen: list[int]
    predictions: list[ShownPrediction]


@dataclass(frozen=True)
class BatchRows:
    """The rows of one or more micro-batches, one after the other.

    seen [R, S] int64: ids that the model sees.
    original [R, S] int64: ids before masking.
    positions [R, S] int64: position in the document; a document begins wherever it is 0.
    columns [R, M] int64: slots of the row that are predicted, in the order of the model input; -1 if unused.
    kinds [R]: the objective of each row.
    """

    seen: NDArray[np.int64]
    original: NDArray[np.int64]
    positions: NDArray[np.int64]
    columns: NDArray[np.int64]
    kinds: NDArray[np.object_]

    @classmethod
    def of(cls, batches: Sequence[Batch], kinds: Sequence[ObjectiveKind] = (OBJECTIVES["mlm"],)) -> "BatchRows":
        """The rows of at least one micro-batch, all of one sequence length. kinds: Config.objective_kinds."""
        groups = [cls._of_group(batch, kinds, *group) for batch in batches for group in batch.by_group()]
        parts = {field.name: [getattr(group, field.name) for group in groups] for field in fields(cls)}
        parts["columns"] = _of_one_width(parts["columns"])
        return cls(**{name: np.concatenate(arrays) for name, arrays in parts.items()})

    @classmethod
    def _of_group(
        cls, batch: Batch, kinds: Sequence[ObjectiveKind], group: RowGroup | None, slots: slice, places: slice
    ) -> "BatchRows":
        seq_len, kind = batch.seq_len, kinds[group.objective if group else 0]
        seen, positions = (array[slots].reshape(-1, seq_len) for array in (batch.tokens, batch.positions))
        labels, predicting = (a[places].reshape(len(seen), -1) for a in (batch.labels, batch.masked_positions))
        columns = np.where(labels == IGNORED, -1, predicting % seq_len + kind.lag)
        row, number = np.nonzero(columns >= 0)
        original = seen.copy()
        original[row, columns[row, number]] = labels[row, number]
        return cls(seen, original, positions, columns, np.full(len(seen), kind, dtype=object))

    def __len__(self) -> int:
        return len(self.seen)

    @property
    def seq_len(self) -> int:
        """Slots of a row."""
        return self.seen.shape[1]

    def rows(self, first: int, last: int) -> "BatchRows":
        """The rows from `first` to before `last`."""
        return BatchRows(**{field.name: getattr(self, field.name)[first:last] for field in fields(self)})

    def documents(self, vocabulary: Vocabulary) -> list[list[BatchDocument]]:
        """The documents of each row, padding left out; predictions in order of position."""
        return [self._documents(row, vocabulary) for row in range(len(self))]

    def _documents(self, row: int, vocabulary: Vocabulary) -> list[BatchDocument]:
        seen, original = self.seen[row].tolist(), self.original[row].tolist()
        starts = np.flatnonzero(self.positions[row] == 0).tolist()
        columns = np.sort(self.columns[row])
        documents = []
        for start, end in zip(starts, [*starts[1:], self.seq_len], strict=True):
            if original[start] == vocabulary.pad:
                continue
            predicted = columns[(columns >= start) & (columns < end)].tolist()
            kinds = [_kind(seen[c], original[c], vocabulary, self.kinds[row]) for c in predicted]
            predictions = [ShownPrediction(c - start, original[c], k) for c, k in zip(predicted, kinds, strict=True)]
            documents.append(BatchDocument(start, original[start:end], seen[start:end], predictions))
        return documents

    def difference(self, other: "BatchRows") -> str | None:
        """Describe briefly how the other global batch differs; None if both are bit-for-bit equal.

        Compares tokens, document boundaries, and the predicted slots with their order. The split into micro-batches
        does not matter. Rows count from 0.
        """
        if self.seq_len != other.seq_len:
            return f"rows have {self.seq_len} slots in the first and {other.seq_len} in the second"
        if len(self) != len(other):
            return f"the first has {len(self)} rows and the second {len(other)}"
        documents = (self.original != other.original).any(axis=1) | (self.positions != other.positions).any(axis=1)
        columns, others = _of_one_width([self.columns, other.columns])
        masks = (columns != others).any(axis=1) | (self.seen != other.seen).any(axis=1)
        rows = np.flatnonzero(documents | masks)
        if not len(rows):
            return None
        what = "other documents" if documents[rows[0]] else "the same documents under other masks"
        return f"row {rows[0]} holds {what}; {len(rows)} of {len(self)} rows differ"


def _of_one_width(columns: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """BatchRows.columns of equally many places, with unused ones at the end."""
    width = max(each.shape[1] for each in columns)
    return [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=-1) for each in columns]


def _kind(seen: int, original: int, vocabulary: Vocabulary, objective: ObjectiveKind) -> Replaced:
    if objective.view.forward:
        return "next"
    return "mask" if seen == vocabulary.mask else "kept" if seen == original else "random"


@dataclass(frozen=True)
class MaskedVisit:
    """A row of one document under the masks of an epoch.

    epoch: the key of the masks. rate: share of ordinary tokens to predict. ordinary: number of ordinary tokens.
    units [S]: the number of the masking unit that an ordinary token belongs to; other slots have no meaning.
    """

    epoch: int
    rate: float
    ordinary: int
    document: BatchDocument
    units: list[int]


def masked_visits(
    config: Config, vocabulary: Vocabulary, ids: NDArray[np.uint32], word_starts: NDArray[np.bool_], number: int
) -> Iterator[MaskedVisit]:
    """Mask a row that begins with a text of ids [T] for `number` epochs from 0, with the masks that training draws.

    A changing rate reaches `end` at the last visit.
    """
    seq_len = config.data.seq_len
    length = min(len(ids), seq_len - SPECIALS_PER_PIECE)
    end = length + SPECIALS_PER_PIECE
    tokens, flags = np.full((1, seq_len), vocabulary.pad), np.zeros((1, seq_len), np.uint8)
    tokens[0, :end] = [vocabulary.cls, *ids[:length].tolist(), vocabulary.sep]
    flags[0, 1 : length + 1] = word_starts[:length] * np.uint8(TokenFlag.WORD_START)
    row = LaidOut(Rows(tokens, np.zeros((1, 3), np.int64), flags), np.unique([end, seq_len]), end, 0)
    cached_weights.cache_clear()  # an earlier call from Python may have read another list
    objective = MaskedTokens(config.masking, vocabulary, config.run.seed, "train")
    ordinary = vocabulary.is_ordinary[row.rows.tokens]
    for epoch in range(number):
        rows = replace(row.rows, row_ids=row.rows.row_ids + np.array([epoch, 0, 0]))
        rate = mask_rate(config, epoch, number)
        masked = BatchRows.of([replace(row, rows=rows).masked(objective, rate)])
        begins = objective.unit_begins(rows, ordinary)
        ((document,),) = masked.documents(vocabulary)
        yield MaskedVisit(epoch, rate, int(ordinary.sum()), document, (np.cumsum(begins) - 1).tolist())
