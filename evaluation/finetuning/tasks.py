"""Protocol of a fine-tuning task, and `open_task`, which creates a task by name."""

from collections.abc import Sequence
from typing import Any, Protocol

from data_prep.errors import UserError
from evaluation.finetuning.cloze_repair import RepairTask
from evaluation.finetuning.label_tasks import Classification, TokenTask
from evaluation.finetuning.learner import Head, Learner
from evaluation.finetuning.questions import Questions
from evaluation.finetuning.settings import FinetuneSettings


class FinetuneTask(Protocol):
    """Encoded training and held-out examples, and their metrics.

    Attributes:
        metric: the main metric.
        heads: the models to train.
        baseline: metrics of a baseline without a model.
        without_model: description of this baseline for reports.
        notes: remarks on the data for reports.
    """

    metric: str
    heads: list[Head]
    baseline: dict[str, float]
    without_model: str
    notes: list[str]

    def evaluate(self, learners: Sequence[Learner]) -> dict[str, float]:
        """Metrics on the held-out examples. learners: one per head."""
        ...


def open_task(settings: FinetuneSettings, train: str, valid: str, tokenizer: Any) -> FinetuneTask:
    """Create the task: read and encode its examples.

    Raises UserError if the files do not fit the task, or the task lacks the metric.
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
