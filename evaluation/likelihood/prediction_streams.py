"""Input and output of a predictor: `Stream` (tokens to predict) and `Answers` (their log-probabilities)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Stream:
    """Concatenated documents and the tokens to predict in them.

    tokens, positions [N] int64, cu_seqlens [C] int32, seq_len, n_documents: see pretrain.data.batch.Batch.
    places [K] int64: slots whose states predict. labels [K] int64: the correct ids.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    seq_len: int
    n_documents: int
    places: NDArray[np.int64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """Per prediction [K]: the log-probability of the correct id in nats, and whether it is the most likely id."""

    log_probabilities: NDArray[np.float64]
    right: NDArray[np.bool_]


class Predictor(Protocol):
    """A model that computes token probabilities."""

    @property
    def causal(self) -> bool:
        """True: a state sees its own and earlier tokens, and predicts the next one. False: it predicts its own."""
        ...

    def __call__(self, stream: Stream) -> Answers: ...


def stream_of(rows: NDArray[np.int64], places: NDArray[np.int64], labels: NDArray[np.int64]) -> Stream:
    """Build a stream from rows [R, S], one document of S tokens each, with K predictions."""
    n_rows, seq_len = rows.shape
    bounds = np.arange(n_rows + 1, dtype=np.int32) * seq_len
    positions = np.tile(np.arange(seq_len), n_rows)
    return Stream(rows.reshape(-1), positions, bounds, seq_len, n_rows, places, labels)
