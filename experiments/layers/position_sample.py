"""Sample of positions in held-out rows: with training masks for masked models, without masks for others.

All draws are keyed, so models with the same tokenizer use the same positions.
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from experiments.layers.measures import GROUPS
from pretrain.config import MaskingConfig
from pretrain.data import row_stream, unmasked_rows
from pretrain.data.stream import Position
from pretrain.masking import IGNORED, MaskedTokens, Rows, Vocabulary
from pretrain.philox import derive_key, draw

_WINDOW_BLOCKS = 16
_ROWS_PER_POSITION = 0.5  # rows to read per requested position of a kind

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SampleSettings:
    """Settings of the sample.

    positions: maximum per kind. tokens: number of most frequent tokens to measure. clusters: of states.
    seq_len: tokens of a row, specials included. mask_rate: share of ordinary tokens to predict.
    seed: keys the sample.
    """

    positions: int = 8000
    tokens: int = 1000
    clusters: int = 1500
    seq_len: int = 128
    mask_rate: float = 0.15
    seed: int = 0


@dataclass(frozen=True)
class Places:
    """Positions of one kind.

    row, column [P] int64: indices. seen [P]: the input id. target [P]: the id to predict, or the input id if there is
    no prediction. group [P]: jackknife group.
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
    """Input rows and the positions of each kind.

    tokens [R, S] int64, padded at the end. frequent: the ids whose information is measured.
    """

    tokens: Indices
    places: dict[str, Places]
    frequent: Indices


def held_out_rows(dataset: Dataset, settings: SampleSettings, vocabulary: Vocabulary) -> Rows:
    """Read rows; each holds a document or a piece of one between [CLS] and [SEP].

    Raises:
        UserError: if there are too few rows.
        DamagedData: if a block is damaged.
    """
    if not dataset.n_blocks:
        raise UserError(f"{dataset.location} holds no document to analyze")
    seq_len = settings.seq_len
    stream = row_stream(dataset, settings.seed, _WINDOW_BLOCKS, "none")
    with closing(stream):
        there = stream.window(Position(), seq_len).end_row
        if there < GROUPS:
            raise UserError(
                f"{dataset.location} makes {there} rows of {seq_len} tokens, and an interval needs {GROUPS}"
            )
        number = min(there, max(GROUPS, round(settings.positions * _ROWS_PER_POSITION)))
        return next(unmasked_rows(stream, vocabulary, seq_len, number)).rows


def frequent_tokens(rows: Rows, vocabulary: Vocabulary, number: int) -> Indices:
    """The `number` most frequent ordinary ids in rows; ties go to the smaller id."""
    counts = np.bincount(rows.tokens.reshape(-1), minlength=vocabulary.size) * vocabulary.is_ordinary
    best = np.argsort(-counts, kind="stable")[:number]
    return np.sort(best[counts[best] > 0])


def plain_sample(rows: Rows, vocabulary: Vocabulary, settings: SampleSettings) -> PositionSample:
    """Sample ordinary tokens that are followed by an ordinary token, which is the target."""
    ordinary = vocabulary.is_ordinary[rows.tokens]
    row, column = np.nonzero(ordinary[:, :-1] & ordinary[:, 1:])
    tokens = rows.tokens
    places = Places(row, column, tokens[row, column], tokens[row, column + 1], row % GROUPS)
    all_places = {"all": _thinned(places, settings, "all")}
    return PositionSample(tokens, all_places, frequent_tokens(rows, vocabulary, settings.tokens))


def masked_sample(rows: Rows, vocabulary: Vocabulary, settings: SampleSettings) -> PositionSample:
    """Sample positions under token masks with BERT's replacement (80/10/10).

    Kinds: `predicted` is all predicted positions, split into `masked` (input [MASK]), `random` (another token) and
    `kept` (unchanged). `unmasked` is the ordinary tokens without a prediction.
    If there are few rows, they repeat under other masks. Unlike in training, the random token is a frequent one,
    because tokens that occur once give no counts.
    """
    frequent = frequent_tokens(rows, vocabulary, settings.tokens)
    if len(frequent) < 2:
        raise UserError("the rows hold fewer than two different tokens. Use a data set with more text.")
    objective = MaskedTokens(MaskingConfig(rate=settings.mask_rate), vocabulary, settings.seed, "analysis")
    different = len(rows.tokens)
    visits = _visit(rows, np.arange(max(different, round(settings.positions * _ROWS_PER_POSITION))))
    masked, original = objective(visits, settings.mask_rate), visits.tokens
    shown = masked.tokens.reshape(original.shape)
    is_predicted = np.zeros_like(original, dtype=np.bool_)
    is_predicted.reshape(-1)[masked.positions[masked.labels != IGNORED]] = True
    kept, hidden = is_predicted & (shown == original), is_predicted & (shown == vocabulary.mask)
    kinds = {
        "predicted": is_predicted,
        "masked": hidden,
        "random": is_predicted & ~kept & ~hidden,
        "kept": kept,
        "unmasked": vocabulary.is_ordinary[original] & ~is_predicted,
    }
    shown[kinds["random"]] = _others(original[kinds["random"]], frequent, settings.seed)
    places = {}
    for kind, here in kinds.items():
        row, column = np.nonzero(here)
        group = row % different % GROUPS  # a row that repeats is in the jackknife group of the first one
        found = Places(row, column, shown[row, column], original[row, column], group)
        places[kind] = _thinned(found, settings, kind)
    return PositionSample(shown, places, frequent)


def _visit(rows: Rows, numbers: Indices) -> Rows:
    """Rows by number. Numbers past the last row wrap around with the next epoch, and so with other masks."""
    epoch, row = np.divmod(numbers, len(rows.tokens))
    places = rows.row_ids[row].copy()
    places[:, 0] += epoch
    return Rows(rows.tokens[row], places, rows.flags[row])


def _others(originals: Indices, frequent: Indices, seed: int) -> Indices:
    """Draw a frequent id for each original [P], uniformly, never the original itself."""
    draws = draw(derive_key(seed, "analysis random tokens"), len(originals), 0, 0, 0)
    rank = np.searchsorted(frequent, originals)
    among = frequent[np.minimum(rank, len(frequent) - 1)] == originals
    pick = (draws % (len(frequent) - among).astype(np.uint64)).astype(np.int64)
    return frequent[pick + (among & (pick >= rank))]


def _thinned(places: Places, settings: SampleSettings, purpose: str) -> Places:
    """Draw at most the requested number of positions uniformly without replacement, in row order."""
    if len(places) <= settings.positions:
        return places
    draws = draw(derive_key(settings.seed, f"analysis positions {purpose}"), len(places), 0, 0, 0)
    return places[np.sort(np.argsort(draws, kind="stable")[: settings.positions])]
