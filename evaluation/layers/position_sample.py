"""The positions at which states are compared: of held-out rows, under the masks of training or as they are.

All is keyed, so that models with one tokenizer are asked about the same positions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.format import Dataset
from evaluation.layers.jackknife import GROUPS
from pretrain.data.batch import lay_out
from pretrain.data.stream import Position, RowStream
from pretrain.data.token_flags import word_order
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, MaskedTokens, Replacement, Rows, Vocabulary
from pretrain.masking.units import TokenUnits
from pretrain.philox import derive_key, draw

_WINDOW_BLOCKS = 16
_ROWS_PER_POSITION = 0.5  # rows that are read for each position wanted of a kind
_CHUNK = 256  # rows masked at once

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SampleSettings:
    """What is measured.

    positions: the most of a kind. tokens: the most frequent ones, whose identity is asked for. clusters: of states.
    seq_len: tokens of a row, specials included. mask_rate: share of ordinary tokens that are predicted.
    shuffled_ngrams: words of the n-grams whose order is shuffled; 0 for natural text. seed: keys the choice.
    """

    positions: int = 4000
    tokens: int = 100
    clusters: int = 300
    seq_len: int = 128
    mask_rate: float = 0.15
    shuffled_ngrams: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Places:
    """Positions of a kind.

    row, column [P] int64: where they are. seen [P]: the id that the model gets there. target [P]: the id that it is to
    predict from there; where it is to predict none, the id seen. group [P]: of the jackknife.
    """

    row: Indices
    column: Indices
    seen: Indices
    target: Indices
    group: Indices

    def __getitem__(self, which: NDArray[np.bool_] | Indices) -> "Places":
        return Places(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class PositionSample:
    """Rows as a model gets them, and the positions of each kind.

    tokens [R, S] int64, padded at the end. frequent: the ids whose identity is asked for.
    """

    tokens: Indices
    places: dict[str, Places]
    frequent: Indices


def held_out_rows(dataset: Dataset, settings: SampleSettings, vocabulary: Vocabulary) -> Rows:
    """The rows to read, each a document or a piece of one between [CLS] and [SEP].

    Raises:
        UserError: if there are too few, or the data set does not tell where words begin, to shuffle them.
        DamagedData: if a block is damaged.
    """
    if not dataset.n_blocks:
        raise UserError(f"{dataset.location} holds no document to look at")
    n = settings.shuffled_ngrams
    order = word_order(dataset, n, settings.seed) if n else None
    stream = RowStream(BlockReader(dataset, reorder=order), settings.seed, _WINDOW_BLOCKS, "none", look_ahead=False)
    try:
        there = stream.window(Position(), settings.seq_len).end_row
        if there < GROUPS:
            raise UserError(
                f"{dataset.location} makes {there} rows of {settings.seq_len} tokens, and an interval needs {GROUPS}"
            )
        number = min(there, max(GROUPS, round(settings.positions * _ROWS_PER_POSITION)))
        parts, _ = stream.take(Position(), number, settings.seq_len)
        return lay_out(parts, number, settings.seq_len, vocabulary).rows
    finally:
        stream.close()


def frequent_tokens(rows: Rows, vocabulary: Vocabulary, number: int) -> Indices:
    """The ordinary ids that are most frequent in rows, `number` at most; of equally frequent ones, the smaller."""
    counts = np.bincount(rows.tokens.reshape(-1), minlength=vocabulary.size) * vocabulary.is_ordinary
    best = np.argsort(-counts, kind="stable")[:number]
    return np.sort(best[counts[best] > 0])


def causal_sample(rows: Rows, vocabulary: Vocabulary, settings: SampleSettings) -> PositionSample:
    """Positions of ordinary tokens that an ordinary token follows, which is their target."""
    ordinary = vocabulary.is_ordinary[rows.tokens]
    row, column = np.nonzero(ordinary[:, :-1] & ordinary[:, 1:])
    tokens = rows.tokens
    places = Places(row, column, tokens[row, column], tokens[row, column + 1], row % GROUPS)
    return PositionSample(
        tokens,
        {"all": _thinned(places, settings, "all")},
        frequent_tokens(rows, vocabulary, settings.tokens),
    )


def masked_sample(rows: Rows, vocabulary: Vocabulary, settings: SampleSettings) -> PositionSample:
    """Positions under token masks with the replacement of BERT (80/10/10), by kind:

    predicted: all that are predicted, as training has them; of these, masked (seen as [MASK]), random (seen as another
    token) and kept (seen as they are); and unmasked, the ordinary tokens that are not predicted.
    Rows that are few come again under other masks. One thing differs from training: the other token is one of the
    frequent ones, since there is nothing to count in tokens that occur once.
    """
    frequent = frequent_tokens(rows, vocabulary, settings.tokens)
    if len(frequent) < 2:
        raise UserError("the rows hold fewer than two different tokens; there is nothing to tell apart")
    objective = MaskedTokens(
        vocabulary, [(TokenUnits(), 1.0)], settings.mask_rate, Replacement(), settings.seed, "analysis"
    )
    wanted = max(len(rows.tokens), round(settings.positions * _ROWS_PER_POSITION))
    seen, target, predicted = [], [], []
    for start in range(0, wanted, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, wanted))
        part = _visit(rows, numbers)
        masked = objective(part, settings.mask_rate)
        of_part = np.zeros(part.tokens.size, dtype=np.bool_)
        of_part[masked.positions[masked.labels != IGNORED]] = True
        target.append(part.tokens)
        seen.append(masked.tokens.reshape(part.tokens.shape))
        predicted.append(of_part.reshape(part.tokens.shape))
    which = _kinds(np.concatenate(seen), np.concatenate(target), np.concatenate(predicted), vocabulary)
    return _of_kinds(np.concatenate(seen), np.concatenate(target), which, len(rows.tokens), frequent, settings)


def _visit(rows: Rows, numbers: Indices) -> Rows:
    """Rows by number; those past the last are the first ones in another epoch, and so under other masks."""
    epoch, row = np.divmod(numbers, len(rows.tokens))
    places = rows.places[row].copy()
    places[:, 0] += epoch
    return Rows(rows.tokens[row], places, rows.marks[row])


def _kinds(
    seen: Indices, target: Indices, predicted: NDArray[np.bool_], vocabulary: Vocabulary
) -> dict[str, NDArray[np.bool_]]:
    """Which slots [R, S] are positions of each kind."""
    kept, masked = predicted & (seen == target), predicted & (seen == vocabulary.mask)
    return {
        "predicted": predicted,
        "masked": masked,
        "random": predicted & ~kept & ~masked,
        "kept": kept,
        "unmasked": vocabulary.is_ordinary[target] & ~predicted,
    }


def _of_kinds(
    seen: Indices,
    target: Indices,
    which: dict[str, NDArray[np.bool_]],
    different: int,
    frequent: Indices,
    settings: SampleSettings,
) -> PositionSample:
    """The sample; of its rows, those after the first `different` ones repeat these, and go where they go."""
    seen = seen.copy()
    seen[which["random"]] = _others(target[which["random"]], frequent, settings.seed)
    places = {}
    for kind, here in which.items():
        row, column = np.nonzero(here)
        found = Places(row, column, seen[row, column], target[row, column], row % different % GROUPS)
        places[kind] = _thinned(found, settings, kind)
    return PositionSample(seen, places, frequent)


def _others(originals: Indices, frequent: Indices, seed: int) -> Indices:
    """For each original [P] one of the frequent ids, each equally likely, but never the original itself."""
    draws = draw(derive_key(seed, "analysis random tokens"), len(originals), 0, 0, 0)
    rank = np.searchsorted(frequent, originals)
    among = frequent[np.minimum(rank, len(frequent) - 1)] == originals
    pick = (draws % (len(frequent) - among).astype(np.uint64)).astype(np.int64)
    return frequent[pick + (among & (pick >= rank))]


def _thinned(places: Places, settings: SampleSettings, purpose: str) -> Places:
    """At most as many as are wanted, each set of that size equally likely, in the order of the rows."""
    if len(places) <= settings.positions:
        return places
    draws = draw(derive_key(settings.seed, f"analysis positions {purpose}"), len(places), 0, 0, 0)
    return places[np.sort(np.argsort(draws, kind="stable")[: settings.positions])]
