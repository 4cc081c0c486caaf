"""Predictions of the model in the same few held-out passages at each evaluation, in RUN/predictions.jsonl.

The file has two kinds of lines. Each start of training writes one line with the passages: documents in token ids
(pretrain.data.batch_view.Document as JSON values).

    {"key": "0f...", "passages": [[{"slot": 0, "original": [...], "seen": [...], "predictions": [...]}]]}

Each evaluation writes one line. For each prediction it has the likeliest ids, their probabilities, and the probability
of the right id.

    {"key": "0f...", "step": 200, "time": 1730000000.25, "ids": [[...]], "probabilities": [[...]], "right": [...]}
"""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from pretrain.config import Config
from pretrain.data import Batch, BatchRows, DeviceBatch, DeviceFeed, Loader
from pretrain.distributed import run_on_all_ranks
from pretrain.engine import Engine
from pretrain.masking import IGNORED, Vocabulary
from pretrain.run import AppendLog

SLOTS = 64  # of a passage, at most: short enough to read quickly
TOP = 3


@dataclass(frozen=True)
class _Asked:
    """The passages: their key, the batch, and a mask of the prediction slots that are used, bool [K]."""

    key: str
    batch: DeviceBatch
    used: np.ndarray


class Samples:
    """Passages of the held-out set, and the file of the model's predictions in them.

    Args:
        valid: the held-out set.
        path: path of the file; None on ranks that do not write it.
    """

    def __init__(self, config: Config, valid: Loader, feed: DeviceFeed, path: Path | None):
        self._config, self._valid, self._feed, self._path = config, valid, feed, path
        self._asked: _Asked | None = None
        self._file: AppendLog | None = None

    def record(self, engine: Engine, step: int) -> None:
        """Append the model's predictions to the file. A collective. A full disk prints a warning."""
        asked = self._asked = self._asked or self._ask()
        if not asked.used.any():
            return
        ids, probabilities, right = (part.cpu().numpy()[asked.used] for part in engine.choices(asked.batch, TOP))
        answer = {
            "key": asked.key,
            "step": step,
            "time": time.time(),
            "ids": ids.tolist(),
            "probabilities": _rounded(probabilities),
            "right": _rounded(right),
        }
        self._append(answer)

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _ask(self) -> _Asked:
        slots = min(SLOTS, *(stage.seq_len for stage in self._config.stages))
        batch = run_on_all_ranks(lambda: self._valid.samples(self._config.eval.samples, slots))
        asked = _Asked(f"{batch.checksum():016x}", self._feed(batch).wait(), batch.labels != IGNORED)
        if asked.used.any():
            passages = passages_of(batch, self._valid.vocabulary, self._config.causal)
            self._append({"key": asked.key, "passages": passages})
        return asked

    def _append(self, record: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._file = self._file or AppendLog(self._path)
            self._file.append(orjson.dumps(record) + b"\n")
        except OSError as error:
            print(f"warning: {self._path} was not written ({error.strerror})", file=sys.stderr, flush=True)


def passages_of(batch: Batch, vocabulary: Vocabulary, causal: bool) -> list[list[dict[str, Any]]]:
    """The documents of each row, as JSON values. Rows that are only padding are left out."""
    rows = BatchRows.of([batch], causal).documents(vocabulary)
    return [[asdict(document) for document in row] for row in rows if row]


def _rounded(values: np.ndarray) -> Any:
    return np.round(values.astype(np.float64), 4).tolist()
