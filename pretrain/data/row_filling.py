"""Row filling of a data set, computed from document lengths alone. Plans use it before training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.format import Dataset
from pretrain.config import DataConfig
from pretrain.data.mixture import quotas
from pretrain.data.packing import SPECIALS_PER_PIECE, pack, randoms_needed
from pretrain.data.training_sources import Sources

_WINDOWS = 2  # number of packed windows; fewer in a smaller data set


@dataclass(frozen=True)
class Filling:
    """Rows of a data set, packed as for training.

    Attributes:
        name: the data set's name in metrics. share: of the run's rows.
        lengths: [D] int64 tokens of the documents, or pieces of them, in a sample of rows; specials included.
        rows: of the sample. epoch_rows: estimate for the whole data set.
    """

    name: str
    share: float
    lengths: NDArray[np.int64]
    rows: int
    epoch_rows: float


def fillings(config: DataConfig, sources: Sources, seq_len: int) -> list[Filling]:
    """The filling of each source at a sequence length."""
    shares = quotas(sources.weights)
    named = zip(sources.names, sources.datasets, shares / shares.sum(), strict=True)
    return [_filling(config, name, dataset, float(share), seq_len) for name, dataset, share in named]


def packed_fill(dataset: Dataset, seq_len: int) -> float:
    """Share of slots that are not padding when a data set is packed with the default settings."""
    found = _filling(DataConfig(train="-"), "", dataset, 1.0, seq_len)
    return float(found.lengths.sum() / (found.rows * seq_len))


def _filling(config: DataConfig, name: str, dataset: Dataset, share: float, seq_len: int) -> Filling:
    generator = np.random.default_rng(0)
    blocks = generator.permutation(dataset.n_blocks)[: _WINDOWS * config.window_blocks]
    sizes, rows, tokens = [], 0, 0
    for window in np.split(blocks, range(config.window_blocks, len(blocks), config.window_blocks)):
        lengths = np.concatenate([dataset.document_lengths(int(block)) for block in window]).astype(np.int64)
        random = generator.integers(1 << 64, size=randoms_needed(lengths, seq_len), dtype=np.uint64)
        packed = pack(np.cumsum(lengths) - lengths, lengths, seq_len, random, config.packing)
        sizes.append(packed.piece_length + SPECIALS_PER_PIECE)
        rows, tokens = rows + len(packed), tokens + int(lengths.sum())
    return Filling(name, share, np.concatenate(sizes), rows, rows * dataset.manifest.totals.tokens / tokens)
