"""Suites: fine-tune models on several tasks, and compare them with random weights of the same architecture.

For each task and model, one seed chooses the learning rate and the epochs on a part of the training examples, the same
part for every model. Other seeds then train with the best choice. Only they are measured on the held-out examples.
"""

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, StringConstraints, ValidationError, model_validator

from data_prep.common.errors import UserError
from data_prep.common.intervals import interval_of_seeds
from data_prep.common.reading import read_bytes
from evaluation.finetuning.experiment import Finetuning
from evaluation.finetuning.head_training import Diverged
from evaluation.finetuning.heads import FinetuneSettings
from evaluation.finetuning.result_file import FinetuneResults
from pretrain.config_files import explain_invalid, read_yaml
from pretrain.export import load_tokenizer, model_digest, model_folder

TaskName = Literal["classification", "regression", "tokens", "repair"]
SEARCH_SEED = 0  # the others are 1, 2, ...


class SuiteTask(BaseModel):
    """A task of a suite. The keys are options of `maskwright finetune`, except these:

    lr, epochs: lists to choose from. search: number of training examples to choose by, at most a fifth of them.
    metric: the main one, by default the task's. start: an earlier task, whose fine-tuned model this one begins with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: TaskName
    train: str
    valid: str
    columns: str = ""
    metric: str | None = None
    start: str | None = None
    lr: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field([1e-5, 3e-5, 1e-4], min_length=1)
    epochs: list[PositiveInt] = Field([3, 10], min_length=1)
    search: PositiveInt = 1000
    seeds: PositiveInt = 5
    batch_size: PositiveInt = 32
    max_length: int = Field(128, ge=8)
    dropout: float | None = Field(None, ge=0, lt=1)
    limit: PositiveInt | None = None
    limit_valid: PositiveInt | None = None

    @property
    def choices(self) -> list[tuple[float, int]]:
        """Learning rates and epochs to choose from."""
        return [*itertools.product(self.lr, self.epochs)]

    def open(self, model: Path, search: int | None = None) -> Finetuning:
        """The fine-tuning of pretrained weights with the first choice. Raises UserError as Finetuning."""
        values = self.model_dump(include={each.name for each in fields(FinetuneSettings)})
        values |= {"columns": tuple(filter(None, self.columns.split(","))), "search": search}
        settings = FinetuneSettings(**values | {"lr": self.lr[0], "epochs": self.epochs[0]})
        return Finetuning(model, settings, {"train": self.train, "valid": self.valid})


class Defaults(SuiteTask):
    """Values for the tasks that do not set them."""

    task: TaskName = "classification"
    train: str = ""
    valid: str = ""


class Suite(BaseModel):
    """The tasks of a suite by name. defaults: values for tasks that do not set them, which `read_suite` fills in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: Defaults | None = None
    tasks: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")], SuiteTask] = Field(
        min_length=1
    )

    @model_validator(mode="after")
    def _starts(self) -> "Suite":
        for number, (name, task) in enumerate(self.tasks.items()):
            if task.start and task.start not in (above := [*self.tasks][:number]):
                names = ", ".join(above) or "it has none"
                raise ValueError(f"tasks.{name}.start must be a task above it ({names}), not {task.start!r}")
            if task.start and "repair" in (task.task, self.tasks[task.start].task):
                raise ValueError(f"tasks.{name}.start cannot join a repair task, which has two models. Remove it")
        return self


def read_suite(path: Path) -> Suite:
    """Read a suite. Values in `defaults` hold for the tasks that do not set them.

    Raises UserError that names the task and the key.
    """
    values = read_yaml(path, Suite)
    defaults, tasks = values.get("defaults"), values.get("tasks")
    if isinstance(defaults, dict) and isinstance(tasks, dict):
        values["tasks"] = {name: defaults | own if isinstance(own, dict) else own for name, own in tasks.items()}
    try:
        return Suite.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {explain_invalid(error, kind=Suite)}") from None


@dataclass(frozen=True)
class Entrant:
    """A row of each table: a model, or random weights of its architecture.

    key: names the folder of its results. random: name of the row with random weights; None: this is one.
    """

    name: str
    model: Path
    key: str
    random: str | None


def entrants_of(models: Sequence[Path]) -> list[Entrant]:
    """The rows of random weights, one for each architecture and tokenizer, and then the models.

    Raises UserError for a model without a tokenizer, or with a file that cannot be read.
    """
    random: dict[str, Entrant] = {}
    rows = []
    for model in models:
        folder = model_folder(model)
        load_tokenizer(folder)  # raises UserError without one
        kind = b"".join(read_bytes(folder / file) for file in ("config.json", "tokenizer.json"))
        key = f"random-{hashlib.sha256(kind).hexdigest()[:8]}"
        title = f"random weights as {model}" if random else "random weights"
        row = random.setdefault(key, Entrant(title, model, key, None))
        key = f"{re.sub(r'[^A-Za-z0-9_.@-]', '-', model.name)}-{model_digest(folder)[:8]}"
        rows.append(Entrant(str(model), model, key, row.name))
    return [*random.values(), *rows]


@dataclass
class SuiteRun:
    """The fine-tunings of a suite. Their results and models are kept in `folder`, and the same call resumes.

    show: called with the steps of a training done, their total, and the current task. say: called with a line of text.
    on_seed: called with a title, the results so far and the entrant: before the chosen settings, and after each seed.
    """

    tasks: Mapping[str, SuiteTask]
    entrants: Sequence[Entrant]
    folder: Path
    show: Callable[[int, int, str], None]
    say: Callable[[str], None]
    on_seed: Callable[[str, FinetuneResults, Entrant], None]
    _tuned: dict[tuple[str, str], Path] = field(default_factory=dict)  # folders of models, by entrant and task

    def check(self, file: Path) -> None:
        """Open every task with every model, and keep the commits of data sets of the Hub for all its rows.

        file: of the suite, for messages. Raises UserError, with the task, for the first that cannot be used.
        """
        models, pinned = [*dict.fromkeys(entrant.model for entrant in self.entrants)], {**self.tasks}
        for name, model in itertools.product(self.tasks, models):
            where = f"{file}: tasks.{name}" if model == models[0] else f"{file}: tasks.{name}, {model}"
            try:
                opened = pinned[name].open(model)
                pinned[name] = pinned[name].model_copy(update=opened.files)
                opened.check_heads()
                if model == models[0] and len(pinned[name].choices) > 1:
                    pinned[name].open(model, pinned[name].search)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
        self.tasks = pinned

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield the results so far by task, as JSON values, after each row of each table."""
        tables: dict[str, Any] = {}
        for name, task in self.tasks.items():
            rows: dict[str, Any] = {}
            opened = functools.cache(task.open)  # random weights have the examples of their model
            for entrant in self.entrants:
                try:
                    finetuning, rows[entrant.name] = self._row(name, task, entrant, opened)
                except UserError as error:
                    raise UserError(f"tasks.{name}, {entrant.name}: {error}") from error
                if entrant.random:
                    rows[entrant.name]["above_random"] = is_above(rows[entrant.name], rows[entrant.random])
                baseline = {"name": finetuning.task.without_model, **finetuning.task.baseline}
                what = {"task": task.task, "start": task.start, "metric": finetuning.task.metric, **finetuning.names}
                tables[name] = what | {"models": rows, "baseline": baseline}
                yield tables

    def _row(
        self, name: str, task: SuiteTask, entrant: Entrant, opened: Callable[..., Finetuning]
    ) -> tuple[Finetuning, dict[str, Any]]:
        """Choose the learning rate and the epochs, and train the seeds with them. opened: `task.open`."""
        model, init = entrant.model, "pretrained" if entrant.random else "random"
        if task.start:
            model, init = self._tuned[entrant.key, task.start], "pretrained"
        scores: dict[tuple[float, int], float] = {}
        if len(task.choices) > 1:
            searching = opened(model, task.search)
            for lr, epochs in task.choices:
                try:
                    varied = searching.varied(lr=lr, epochs=epochs, init=init)
                    results = self._train(varied, entrant, f"{name} search", [SEARCH_SEED])
                    scores[lr, epochs] = results.mean(results.metric)
                except Diverged as error:
                    self.say(f"{name}, {entrant.name}, learning rate {lr:g} is left out: {error}")
            if not scores:
                raise UserError("the loss of every choice is not finite. Lower lr in the suite.")
        lr, epochs = max(scores, key=lambda choice: scores[choice], default=task.choices[0])
        finetuning = opened(model).varied(lr=lr, epochs=epochs, init=init)
        for note in finetuning.task.notes:
            self.say(f"{name}, {entrant.name}: {note}")
        is_start = name in {other.start for other in self.tasks.values()}
        results = self._train(finetuning, entrant, name, range(1, task.seeds + 1), is_start)
        self._tuned[entrant.key, name] = self._place(finetuning, entrant, name)
        values = results.values(results.metric)
        return finetuning, {
            "mean": results.mean(results.metric),
            "interval": interval_of_seeds(values),
            "scores": values,
            "by_seed": [result.metrics for result in results.results],
            "lr": lr,
            "epochs": epochs,
            "search": [{"lr": lr, "epochs": epochs, "score": score} for (lr, epochs), score in scores.items()],
        }

    def _place(self, finetuning: Finetuning, entrant: Entrant, name: str) -> Path:
        """The folder of the best seed's model. The file of the results has its name and `.json`."""
        return self.folder / entrant.key / f"{name}-{finetuning.settings.lr:g}-{finetuning.settings.epochs}"

    def _train(
        self, finetuning: Finetuning, entrant: Entrant, name: str, seeds: Sequence[int], keep_model: bool = False
    ) -> FinetuneResults:
        """Train the seeds that the file of the results lacks."""
        place, title = self._place(finetuning, entrant, name), f"{name}, {entrant.name}"
        file, out = place.with_name(f"{place.name}.json"), place if keep_model else None
        place.parent.mkdir(parents=True, exist_ok=True)
        ignored = ("model", "out") if finetuning.settings.init == "random" else ("out",)  # the folder may be moved
        results = finetuning.open_results(file, out, ignored)
        show = lambda step, steps, line: self.show(step, steps, f"{title}, {line}")  # noqa: E731
        is_search = SEARCH_SEED in seeds
        if not is_search:
            self.on_seed(title, results, entrant)  # what an interrupted call did not send
        for result in finetuning.train_seeds(results, seeds, show):
            settings, score = finetuning.settings, f"{results.metric} {result.metrics[results.metric]:.4f}"
            how = f"learning rate {settings.lr:g}, epochs {settings.epochs}, seed {result.seed}"
            self.say(f"{title}, {how}: {score}, {result.seconds:.0f} s")
            if not is_search:
                self.on_seed(title, results, entrant)
        results.results = [each for each in results.results if each.seed in seeds]  # an earlier call may have had more
        return results


def is_above(row: Mapping[str, Any], random: Mapping[str, Any]) -> bool | None:
    """Whether the interval of a row is above that of random weights; None with one seed.

    Equal scores have no interval: their value takes its place.
    """
    if min(len(row["scores"]), len(random["scores"])) < 2:
        return None
    (low, _), (_, high) = (each["interval"] or (each["mean"], each["mean"]) for each in (row, random))
    return bool(low > high)
