"""Evaluation on held-out data: the loss, and the model's predictions in the same few passages.

RUN/predictions.jsonl has two kinds of lines. Each start of training writes one line with the passages: documents in
token ids (pretrain.data.batch_view.BatchDocument as JSON values).

    {"key": "0f...", "passages": [[{"slot": 0, "original": [...], "seen": [...], "predictions": [...]}]]}

Each evaluation writes one line. For each prediction it has the likeliest ids, their probabilities, and the probability
of the right id.

    {"key": "0f...", "step": 200, "time": 1730000000.25, "ids": [[...]], "probabilities": [[...]], "right": [...]}
"""

import functools
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson

from data_prep.common.files import AppendLog
from data_prep.format import Dataset
from pretrain.data import BatchRows, DeviceBatch, DeviceFeed, Loader
from pretrain.distributed import print_on_rank_zero, run_on_all_ranks
from pretrain.engine import Engine, LossSums
from pretrain.loop.step_metrics import objective_metrics
from pretrain.masking import IGNORED
from pretrain.objectives import shares_at
from pretrain.setup import RunParts

SLOTS = 64  # of a passage, at most: short enough to read quickly
TOP = 3


@dataclass(frozen=True)
class _Passages:
    """The passages: their key, the batch, and a mask of the prediction slots that are used, bool [K]."""

    key: str
    batch: DeviceBatch
    used: np.ndarray


class HeldOutEvaluation:
    """The held-out data of one rank. Rank 0 writes the sample predictions. A collective."""

    def __init__(self, run: RunParts, valid: Dataset, feed: DeviceFeed):
        self._config, self._feed, self._valid = run.config, feed, valid
        self._loader_of = functools.partial(Loader.for_held_out, run.config, valid, run.stages, run.rank)
        self._loader = run_on_all_ranks(self._loader_of)
        self._path = run.folder.predictions if run.rank == 0 else None
        self._passages: _Passages | None = None
        self._file: AppendLog | None = None
        self._warned = False

    def evaluate(self, engine: Engine, step: int) -> dict[str, float]:
        """Metrics of the weights, also of averaged weights, after `step` steps; a collective."""
        start = time.monotonic()
        metrics = self._metrics(engine, step, self._loader)
        if self._config.optim.ema is not None:
            metrics["eval/ema_loss"] = self._metrics(engine, step, self._loader, averaged=True)["eval/loss"]
        if self._config.eval.by_source:
            metrics |= self._of_sources(engine, step)
        if self._config.eval.samples:
            self._record_samples(engine, step)
        return metrics | {"eval/seconds": time.monotonic() - start}

    def close(self) -> None:
        if self._file:
            self._file.close()
        self._loader.close()

    def _of_sources(self, engine: Engine, step: int) -> dict[str, float]:
        """The loss of each source. One at a time is open, so that memory does not grow with their number.

        A source without predictions has no loss. It is left out. A warning names it the first time.
        """
        losses, without = {}, []
        for source in sorted({*self._valid.manifest.shard_sources()}):
            with closing(run_on_all_ranks(functools.partial(self._loader_of, source=source))) as loader:
                sums, name = self._sums(engine, step, loader), source or "unnamed"
                if all(of_one.predictions for of_one in sums):
                    losses[f"eval/source_loss/{name}"] = self._summary(step, sums)["eval/loss"]
                else:
                    without.append(name)
        if without and not self._warned:
            more = f" and {len(without) - 1} more" if without[1:] else ""
            print_on_rank_zero(f"warning: eval.by_source has no loss of {without[0]}{more}: nothing to predict there")
            self._warned = True
        return losses

    def _metrics(self, engine: Engine, step: int, loader: Loader, averaged: bool = False) -> dict[str, float]:
        """Loss and accuracy of each objective on all rows of a loader."""
        return self._summary(step, self._sums(engine, step, loader, averaged))

    def _sums(self, engine: Engine, step: int, loader: Loader, averaged: bool = False) -> list[LossSums]:
        n = len(self._config.objective_kinds)
        return [engine.evaluate(self._batches(loader, step, number), averaged) for number in range(n)]

    def _summary(self, step: int, sums: list[LossSums]) -> dict[str, float]:
        last = max(0, step - 1)
        shares = shares_at(self._config, last) if len(sums) > 1 else ()
        return objective_metrics("eval", self._config, last, shares, sums)

    def _batches(self, loader: Loader, step: int, objective: int) -> Iterator[DeviceBatch]:
        held_out = loader.held_out(step, self._config.eval.rows, objective)
        return (self._feed(batch).wait() for batch in held_out)

    def _record_samples(self, engine: Engine, step: int) -> None:
        """Append the model's predictions to the file. A full disk prints a warning."""
        passages = self._passages = self._passages or self._choose_passages()
        if not passages.used.any():
            return
        choices = engine.choices(passages.batch, TOP)
        ids, probabilities, right = (part.cpu().numpy()[passages.used] for part in choices)
        answer = {
            "key": passages.key,
            "step": step,
            "time": time.time(),
            "ids": ids.tolist(),
            "probabilities": _rounded(probabilities),
            "right": _rounded(right),
        }
        self._append(answer)

    def _choose_passages(self) -> _Passages:
        """Mask the passages, and write them to the file. Rows that are only padding are left out there."""
        slots = min(SLOTS, *(stage.seq_len for stage in self._config.stages))
        kinds = self._config.objective_kinds
        main = kinds.index(self._config.objective_kind)
        batch = run_on_all_ranks(lambda: self._loader.samples(self._config.eval.samples, slots, main))
        key, used = f"{batch.checksum():016x}", batch.labels != IGNORED
        if used.any():
            rows = BatchRows.of([batch], kinds).documents(self._loader.vocabulary)
            self._append({"key": key, "passages": [[asdict(document) for document in row] for row in rows if row]})
        return _Passages(key, self._feed(batch).wait(), used)

    def _append(self, record: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._file = self._file or AppendLog(self._path)
            self._file.append(orjson.dumps(record) + b"\n")
        except OSError as error:
            print(f"warning: {self._path} was not written ({error.strerror})", file=sys.stderr, flush=True)


def _rounded(values: np.ndarray) -> Any:
    return np.round(values.astype(np.float64), 4).tolist()
