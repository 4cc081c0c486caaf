"""Run a fine-tuning: open the task, train each seed, save the best model."""

import copy
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from data_prep.common.errors import UserError, library_errors
from data_prep.common.files import atomic_folder, check_writable, free_folder, write_json
from data_prep.common.reading import json_or_none
from data_prep.common.urls import shown
from evaluation.finetuning.cloze_repair import RepairTask
from evaluation.finetuning.example_files import content_digest, pinned
from evaluation.finetuning.head_training import TrainedHead, check_ids, head_steps, initial_model, train_head
from evaluation.finetuning.heads import FinetuneSettings
from evaluation.finetuning.label_tasks import Classification, Regression, TokenTask
from evaluation.finetuning.result_file import Epoch, FinetuneResults, SeedResult
from pretrain.export import load_tokenizer, model_config, model_digest, model_folder, save_model
from pretrain.model import longest_text

_IDENTITY = "fine-tuning.json"  # in the folder of the best seed's model: what decides the scores

OnProgress = Callable[[int, int, str], None]
"""Called with the steps done, the total steps of a seed, and the current task."""


FinetuneTask = Classification | Regression | TokenTask | RepairTask
"""Encoded training and held-out examples, and their metrics.

metric: the main one. heads: the models to train. baseline: metrics without a model, described by `without_model`.
notes: remarks on the data for reports. evaluate(outputs): metrics of the held-out examples, from the outputs of each
head.
"""
_TASKS: dict[str, type[FinetuneTask]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": TokenTask,
    "repair": RepairTask,
}


def open_task(settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> FinetuneTask:
    """Create the task: read and encode its examples.

    Raises UserError if the files do not fit the task, or the package that training needs is missing.
    """
    if find_spec("accelerate") is None:
        raise UserError("Fine-tuning needs the package accelerate. Run: python -m pip install accelerate")
    return _TASKS[settings.task](settings, train, valid, tokenizer)


class Finetuning:
    """A fine-tuning of a model: its task, results and saved models.

    Args:
        model: Hugging Face folder or run.
        settings: a `max_length` above the model's limit is lowered.
        files: paths of "train" and "valid".

    Attributes:
        files: the same, with the commit of a data set of the Hub. names: of `files`, without the queries of URLs.
        settings: with the lowered `max_length`.

    Raises UserError if there is no model or tokenizer, the tokenizer has no pad token, or the files do not fit the
    task.
    """

    def __init__(self, model: Path, settings: FinetuneSettings, files: dict[str, str]) -> None:
        self._folder, self.files = model_folder(model), {name: pinned(path) for name, path in files.items()}
        self.names = {name: shown(path) for name, path in self.files.items()}
        tokenizer = load_tokenizer(self._folder)
        if tokenizer.pad_token_id is None:
            raise UserError(f"{self._folder}: the tokenizer has no pad token, which batches need. Add one.")
        longest = min(settings.max_length, tokenizer.model_max_length, _longest(self._folder))
        self.settings, self._tokenizer = replace(settings, max_length=longest), tokenizer
        self.task = open_task(self.settings, self.files["train"], self.files["valid"], tokenizer)
        if settings.metric:
            if settings.metric not in (metrics := self.task.baseline):
                raise UserError(f"metric is {settings.metric!r}; the metrics of this task are {', '.join(metrics)}.")
            self.task.metric = settings.metric
        read = ["train"] if settings.search else [*self.files]
        self._digests = {"model": model_digest(self._folder)}
        self._digests |= {name: content_digest(self.files[name]) for name in read}

    def varied(self, **changes: Any) -> "Finetuning":
        """The same model and examples with other `epochs`, `lr` or `init`."""
        other = copy.copy(self)
        other.settings = replace(self.settings, **changes)
        return other

    def check_heads(self) -> None:
        """Load the model of each head. Raises UserError for what `train_head` refuses before its first step."""
        for head in self.task.heads:
            model = initial_model(self._folder, head, self.settings, self._tokenizer.pad_token_id)
            check_ids(self._folder, model, head.examples, self._tokenizer.pad_token_id)

    def open_results(self, json_path: Path | None, out: Path | None, ignored: Collection[str] = ()) -> FinetuneResults:
        """Open the results to resume from `json_path`, or new ones. ignored: see `FinetuneResults.resume_from`.

        Raises UserError if json_path belongs to another fine-tuning, `out` holds other files, or one cannot be written.
        """
        identity = {**asdict(self.settings), "columns": list(self.settings.columns), "out": str(out) if out else None}
        metric, baseline = self.task.metric, self.task.baseline
        identity |= self._digests
        results = FinetuneResults(metric, identity, baseline, names=self.names, path=json_path, out=out)
        if json_path is not None:
            if not json_path.absolute().parent.is_dir():
                raise UserError(f"there is no folder {json_path.absolute().parent} to write {json_path.name} to")
            check_writable(json_path, "--json")
            results.resume_from(json_path, ignored)
        if out is not None:
            check_writable(out if out.is_dir() else free_folder(out))
            _restore(out)
            used = out.exists() and any(out.iterdir())
            is_own = json_or_none(out / _IDENTITY, dict[str, Any]) == results.identity
            if used and not results.results and not (json_path and is_own):
                raise UserError(f"{out} exists and is not an empty folder; choose another --out")
            if results.results and not used:
                raise UserError(f"{out} is gone, and {json_path} has its seeds: remove that file to train them again")
        return results

    def train_seeds(
        self, results: FinetuneResults, seeds: Iterable[int], on_progress: OnProgress
    ) -> Iterator[SeedResult]:
        """Train the seeds that `results` lacks. Yield each result after `results` has it and its file is written."""
        for seed in sorted({*seeds} - {result.seed for result in results.results}):
            result, models = self.run_seed(seed, on_progress)
            best = max(results.values(results.metric), default=-math.inf)
            if results.out is not None and result.metrics[results.metric] > best:
                self.save(results.out, models, results)
            results.results.append(result)
            if results.path is not None:
                results.write(results.path)
            yield result

    def run_seed(self, seed: int, on_progress: OnProgress) -> tuple[SeedResult, list[Any]]:
        """Train and evaluate one seed. Return its result and the trained models of the task's heads."""
        begun, heads = time.monotonic(), self.task.heads
        total = self.settings.epochs * sum(head_steps(len(head.examples), self.settings) for head in heads)
        steps = itertools.count(1)
        on_step = lambda line: on_progress(next(steps), total, line)  # noqa: E731
        trained: list[TrainedHead] = []
        for head in heads:
            trained.append(train_head(self._folder, head, self.settings, self._tokenizer, seed, trained, on_step))
        epochs = []
        for number, time_of_end in enumerate(trained[-1].times):
            losses = {head.name or "model": own.losses[number] for head, own in zip(heads, trained, strict=True)}
            metrics = self.task.evaluate([own.outputs[number] for own in trained])
            epochs.append(Epoch(time_of_end, losses, metrics))
        return SeedResult(seed, time.monotonic() - begun, epochs), [own.model for own in trained]

    def save(self, out: Path, models: list[Any], results: FinetuneResults) -> None:
        """Write the models as Hugging Face folders and replace the models of a worse seed.

        One model goes to `out`, several go to out/NAME.

        Raises UserError if writing fails; the earlier models are kept.
        """
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        tokenizer = load_tokenizer(self._folder)  # without the truncation of the task
        try:
            with atomic_folder(out) as temporary:
                for head, model in zip(self.task.heads, models, strict=True):
                    save_model(model, tokenizer, temporary / head.name)
                write_json(temporary / _IDENTITY, results.identity)
                shutil.rmtree(_aside(out), ignore_errors=True)
                if out.exists():
                    out.rename(_aside(out))
            shutil.rmtree(_aside(out), ignore_errors=True)
        except (OSError, SafetensorError) as error:
            _restore(out)
            raise UserError(f"{out}: the model cannot be written ({error})") from error


def _aside(out: Path) -> Path:
    """Temporary place of the previous best models while they are replaced."""
    return out.absolute().with_name(f".{out.absolute().name}.before")


def _restore(out: Path) -> None:
    """Move the previous models back if nothing replaced them."""
    if _aside(out).exists() and not (out.exists() and any(out.iterdir())):
        _aside(out).rename(out)


def _longest(folder: Path) -> int:
    """Maximum text length of the model in tokens."""
    from transformers import AutoModel

    with library_errors(f"{folder}: transformers has no model for its config", "Export or copy it again."):
        config = model_config(folder)
        with torch.device("meta"):
            return longest_text(AutoModel.from_config(config)) or sys.maxsize
