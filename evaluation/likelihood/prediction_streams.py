"""What a model is asked, and what it answers."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Stream:
    """Documents back to back, and tokens that are to be predicted in them.

    tokens, positions [N] int64, cu_seqlens [C] int32, seq_len, n_documents: see pretrain.data.batch.Batch.
    places [K] int64: the slots whose states predict. labels [K] int64: the ids that are right there.
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
    """For each prediction, the log-probability of the right id, in nats, and whether it is the likeliest: [K]."""

    log_probabilities: NDArray[np.float64]
    right: NDArray[np.bool_]


class Predictor(Protocol):
    """A model that gives tokens their probability."""

    @property
    def causal(self) -> bool:
        """Whether a state sees only the tokens up to its own: it then predicts the next one, else its own."""
        ...

    def __call__(self, stream: Stream) -> Answers: ...


def stream_of(rows: NDArray[np.int64], places: NDArray[np.int64], labels: NDArray[np.int64]) -> Stream:
    """Documents of one length, each a row [R, S], with predictions [K]."""
    n_rows, seq_len = rows.shape
    bounds = np.arange(n_rows + 1, dtype=np.int32) * seq_len
    positions = np.tile(np.arange(seq_len), n_rows)
    return Stream(rows.reshape(-1), positions, bounds, seq_len, n_rows, places, labels)
