"""Checkpoints as MLflow logged models, and in the model registry: Hugging Face folders with their evaluations linked.

The tag `maskwright.model`, made from the run and the checkpoint, identifies a model. So a pass that was killed resumes
where it stopped: a model counts as logged when MLflow calls it READY.
"""

import contextlib
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep.common.errors import UserError
from data_prep.common.files import file_lock, refuse_link
from data_prep.common.urls import require_trust
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.export import export_run
from pretrain.run import JournalTable, RunFolder, step_name
from pretrain.tracking.journal_points import Point
from pretrain.tracking.mlflow_runs import MODEL_TAG, MlflowRun, short_errors
from pretrain.tracking.model_package import MLFLOW_NOTE, card_text, write_package
from pretrain.tracking.run_record import describe_input

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

_AVERAGED = "-ema"


@dataclass(frozen=True)
class Candidate:
    """The weights of the checkpoint at `path`, or their averages, with what an evaluation at its step found, by metric.

    `saved` is when the checkpoint was written, in Unix seconds.
    """

    step: int
    averaged: bool
    path: Path
    saved: float
    metrics: dict[str, Point]

    @property
    def name(self) -> str:
        return f"{step_name(self.step)}{_AVERAGED if self.averaged else ''}"

    @property
    def loss(self) -> float:
        """The held-out loss, nats a prediction; infinity if there was no evaluation at this step."""
        loss = self.metrics.get(_loss_name(self.averaged))
        return loss.value if loss else math.inf


def candidates(folder: RunFolder, averaged: bool) -> list[Candidate]:
    """The weights of the committed checkpoints, in order of step; with `averaged`, also the averages of each step.

    Raises UserError if the manifest of a checkpoint is damaged.
    """
    measured = JournalTable.read(folder.journal)
    offered = []
    for step, path in reversed(checkpoint.committed(folder.checkpoints)):
        saved, metrics = checkpoint.read(path).time, evaluation(measured, step)
        for of_ema in (False, True) if averaged else (False,):
            own = {name: point for name, point in metrics.items() if (name == _loss_name(averaged=True)) is of_ema}
            offered.append(Candidate(step, of_ema, path, saved, own))
    return offered


def evaluation(measured: JournalTable, step: int) -> dict[str, Point]:
    """The points of the evaluation at a step; if it was evaluated twice, the later values are valid.

    If the values are equal, the time of the first line counts, as in MLflow.
    """
    points = {}
    for name, (lines, values) in measured.columns.items():
        here = np.flatnonzero(measured.steps[lines] == step)
        if name.startswith("eval/") and name != "eval/seconds" and len(here):
            value = values[here[-1]]
            line = lines[here[0] if values[here[0]] == value else here[-1]]
            points[name] = Point(name, float(value), float(measured.times[line]), step)
    return points


def chosen(offered: list[Candidate], which: str, logged: list[float]) -> list[Candidate]:
    """The candidates that `track.models` asks for.

    Args:
        which: all; last, of the newest step; best, each whose held-out loss is below the losses of all earlier ones.
        logged: losses of the models that MLflow has already.
    """
    if which == "last" and offered:
        return [candidate for candidate in offered if candidate.step == offered[-1].step]
    if which == "all":
        return offered
    lowest = min(logged, default=math.inf)
    best: list[Candidate] = []
    for candidate in offered:
        if candidate.loss < lowest:
            lowest = candidate.loss
            best.append(candidate)
    return best


def log_models(
    run: Path, which: str, step: int | None = None, uri: str | None = None, trust_folder: bool = False
) -> list[str]:
    """Log the checkpoints of a run as models of its MLflow run, those that are not there yet.

    Args:
        which: all, best or last.
        step: this checkpoint alone, whatever `which` says.
        uri, trust_folder: as in Target.of_run.

    Returns:
        The names of the models logged now.

    Raises UserError if the run is not in MLflow, MLflow does not answer, or a checkpoint cannot be exported.
    """
    folder = RunFolder(run)
    config = load_config(folder.config)
    if not trust_folder:
        require_trust([config.data.valid], folder.config)
    if not config.objective_kind.fills_masks:
        raise UserError(
            f"a model of objective {config.objective_text} is not logged in MLflow, whose pipeline would end each text "
            "with [SEP]; use `maskwright export`"
        )
    offered = candidates(folder, averaged=config.optim.ema is not None)
    if step is not None and not (offered := [candidate for candidate in offered if candidate.step == step]):
        raise UserError(f"{run}: there is no checkpoint of step {step}")
    with short_errors(f"logging the models of {run} in MLflow"):
        refuse_link(folder.exports).mkdir(exist_ok=True)
        # The training's own pass and a command would log the same model twice.
        with file_lock(folder.exports / ".lock", needed=False):
            tracked = MlflowRun.of_folder(run, uri, trust_folder)
            return _log_missing(folder, config, tracked, offered, "all" if step is not None else which)


def _log_missing(
    folder: RunFolder, config: Config, tracked: MlflowRun, offered: list[Candidate], which: str
) -> list[str]:
    begun = {model.tags[MODEL_TAG]: model for model in tracked.logged_models()}
    ready = {key: begun.pop(key) for key, model in list(begun.items()) if str(model.status) == "READY"}
    done = []
    for candidate in chosen(offered, which, [loss_of(model) for model in ready.values()]):
        key = f"{tracked.key}/{candidate.name}/{candidate.saved}"
        if key not in ready and _log(folder, config, tracked, candidate, key, begun.get(key)):
            done.append(candidate.name)
    return done


def loss_of(model: "LoggedModel") -> float:
    """The held-out loss that is linked to a logged model; infinity if it was not evaluated."""
    name = _loss_name(model.name.endswith(_AVERAGED))
    values = [metric.value for metric in model.metrics or [] if metric.key == name]
    return values[-1] if values else math.inf


def _loss_name(averaged: bool) -> str:
    return "eval/ema_loss" if averaged else "eval/loss"


def _log(
    folder: RunFolder, config: Config, tracked: MlflowRun, candidate: Candidate, key: str, begun: "LoggedModel | None"
) -> bool:
    """Whether the model was logged: a checkpoint that training removed meanwhile cannot be."""
    from mlflow.entities import LoggedModelOutput

    work = folder.exports / ".logged-model.tmp"
    shutil.rmtree(work, ignore_errors=True)
    try:
        try:
            exported = export_run(folder.path, candidate.step, work / candidate.name, averaged=candidate.averaged)
        except (UserError, OSError):
            if candidate.path.exists():
                raise
            return False
        model = begun or tracked.client.create_logged_model(
            tracked.experiment_id,
            name=candidate.name,
            source_run_id=tracked.id,
            tags={MODEL_TAG: key, "step": str(candidate.step)},
            params=tracked.run.data.params | {"step": str(candidate.step)},
            model_type="masked language model",
        )
        tracked.client.set_logged_model_tags(model.model_id, {MLFLOW_NOTE: card_text(exported)})
        write_package(exported, work / "package", model, tracked.id, f"{folder.title}/{candidate.name}")
        tracked.client.log_model_artifacts(model.model_id, str(work / "package"))
        outputs = tracked.client.get_run(tracked.id).outputs
        if model.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else ())]:
            tracked.client.log_outputs(tracked.id, [LoggedModelOutput(model.model_id, step=candidate.step)])
        _link(tracked, config, candidate, model.model_id)
        tracked.client.finalize_logged_model(model.model_id, "READY")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def _link(tracked: MlflowRun, config: Config, candidate: Candidate, model_id: str) -> None:
    """Link the evaluation of this model. The run keeps one row, as both have the time of the journal's line."""
    dataset: tuple[str, str] | tuple[None, None] = None, None
    with contextlib.suppress(UserError, OSError):  # the held-out data may be gone
        if config.data.valid is not None:
            held_out = describe_input(Dataset(config.data.valid), "eval")
            tracked.log_inputs([held_out])
            dataset = held_out["name"], held_out["digest"]
    tracked.log_points(list(candidate.metrics.values()), model_id, dataset)


@dataclass(frozen=True)
class Registered:
    """A version of a registered model, and what it was made from; `loss` is infinite if it was not measured."""

    name: str
    version: str
    model: str
    loss: float


def register(
    run: Path, name: str, which: str, alias: str | None, uri: str | None = None, trust_folder: bool = False
) -> Registered:
    """Make a run's logged model a version of the registered model `name`; the same model is registered once.

    Args:
        which: best, by held-out loss, of the logged models and of the checkpoints that are there; last; or a step.
        alias: a name for this version, taken from the one that has it.
        uri, trust_folder: as in Target.of_run.

    Raises UserError if there is no such model, or MLflow does not take it.
    """
    step = int(which) if which.isdecimal() else None
    if step is None and which not in ("best", "last"):
        raise UserError(f"--step {which} is neither a step nor best or last")
    with short_errors(f"registering a model of {run} in MLflow"):
        tracked = MlflowRun.of_folder(run, uri, trust_folder)
        there = [number for number, _ in checkpoint.committed(RunFolder(run).checkpoints)]  # newest first
        step = there[0] if which == "last" and there else step
        if step is None or step in there or str(step) not in [model.tags["step"] for model in tracked.ready_models()]:
            log_models(run, which if step is None else "all", step, uri, trust_folder)
        model = _choose(tracked.ready_models(), run, which if step is None else str(step))
        version = _version(tracked, name, model)
        if alias:
            tracked.client.set_registered_model_alias(name, alias, version)
    return Registered(name, version, model.name, loss_of(model))


def _choose(models: list["LoggedModel"], run: Path, which: str) -> "LoggedModel":
    """The model with the lowest loss. Of equal or missing losses, the model that was logged last."""
    if which != "best":
        if not models:
            raise UserError(f"{run} has no checkpoint to register")
        step = max(int(model.tags["step"]) for model in models) if which == "last" else int(which)
        models = [model for model in models if int(model.tags["step"]) == step]
    elif math.isinf(min(map(loss_of, models), default=math.inf)):
        raise UserError(
            f"no checkpoint of {run} was evaluated at its step, so none is the best: give --step N, and next time "
            "make checkpoint.every_steps a multiple of eval.every_steps"
        )
    return min(models, key=lambda model: (loss_of(model), -model.creation_timestamp))


def _version(tracked: MlflowRun, name: str, model: "LoggedModel") -> str:
    import mlflow

    client, source = tracked.client, f"models:/{model.model_id}"
    for version in client.search_model_versions(f"source_path = '{source}'"):
        if version.name == name:
            return str(version.version)
    tags = {"step": model.tags["step"], "checkpoint": model.name}
    if math.isfinite(loss := loss_of(model)):
        tags["held-out loss"] = f"{loss:.6f}"
    made = mlflow.register_model(source, name, tags=tags)  # where logged_models has set the address
    client.update_model_version(name, made.version, model.tags.get(MLFLOW_NOTE))
    return str(made.version)
