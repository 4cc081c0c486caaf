"""The protocol of a fine-tuning task, and the task that settings name."""

from collections.abc import Sequence
from typing import Any, Protocol

from data_prep.errors import UserError
from evaluation.finetuning.classification import Classification
from evaluation.finetuning.cloze_repair import RepairTask
from evaluation.finetuning.learner import Head, Learner
from evaluation.finetuning.questions import Questions
from evaluation.finetuning.settings import FinetuneSettings
from evaluation.finetuning.token_labels import TokenTask


class FinetuneTask(Protocol):
    """The examples of two files, ready for models.

    Attributes:
        metric: the one that counts, unless another is asked for.
        heads: the models that are trained.
        baseline: the metrics of what can be had without a model.
        without_model: what that is, for people.
        notes: sentences about the data, for people.
    """

    metric: str
    heads: list[Head]
    baseline: dict[str, float]
    without_model: str
    notes: list[str]

    def evaluate(self, learners: Sequence[Learner]) -> dict[str, float]:
        """Metrics on the held-out examples; `learners` are of the heads."""
        ...


def open_task(settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> FinetuneTask:
    """The task of the settings, its examples read and encoded.

    Raises:
        UserError: if files do not hold what the task needs, or it has no such metric.
    """
    kinds: dict[str, Any] = {
        "classification": Classification,
        "tokens": TokenTask,
        "questions": Questions,
        "repair": RepairTask,
    }
    task: FinetuneTask = kinds[settings.task](settings, train, valid, tokenizer)
    task.metric = settings.metric or task.metric
    if task.metric not in task.baseline:
        *others, last = task.baseline
        names = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f"--metric for {settings.task} must be {names}, not {task.metric!r}.")
    return task
