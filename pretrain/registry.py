"""A run's logged model in MLflow's model registry."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import UserError
from pretrain.logged_models import is_ready, log_models, loss_of, models_of
from pretrain.model_package import MLFLOW_NOTE
from pretrain.tracking.runs import MlflowRun, short_errors

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel


@dataclass(frozen=True)
class Registered:
    """A version of a registered model, and what it was made from."""

    name: str
    version: str
    model: str
    loss: float | None


def register(run: Path, name: str, which: str, alias: str | None, uri: str | None = None) -> Registered:
    """Make a run's logged model a version of the registered model `name`; the same model is registered once.

    Args:
        which: best, by held-out loss, of the logged models and of the checkpoints that are there; last; or a step.
        alias: a name for this version, taken from the one that has it.
        uri: as in run_target.

    Raises:
        UserError: if there is no such model, or MLflow does not take it.
    """
    step = int(which) if which.isdecimal() else None
    if step is None and which not in ("best", "last"):
        raise UserError(f"--step {which} is neither a step nor best or last")
    with short_errors(f"registering a model of {run} in MLflow"):
        tracked = MlflowRun.of_folder(run, uri)
        if step is None or not _of_step(models_of(tracked), step):
            log_models(run, which if step is None else "all", step, uri)
        model = _choose(models_of(tracked), run, which, step)
        version = _version(tracked, name, model)
        if alias:
            tracked.client.set_registered_model_alias(name, alias, version)
    return Registered(name, version, model.name, loss_of(model))


def _of_step(models: list["LoggedModel"], step: int) -> list["LoggedModel"]:
    return [model for model in models if int(model.tags["step"]) == step and is_ready(model)]


def _choose(models: list["LoggedModel"], run: Path, which: str, step: int | None) -> "LoggedModel":
    """The lowest loss, and of equals, or where there is none, the model that was logged last."""
    ready = [model for model in models if is_ready(model)]
    if not ready:
        raise UserError(f"{run} has no checkpoint to register")
    if which == "best" and not any(loss_of(model) is not None for model in ready):
        raise UserError(
            f"no checkpoint of {run} was evaluated at its step, so none is the best: give --step N, and next time "
            "make checkpoint.every_steps a multiple of eval.every_steps"
        )
    if step is None and which == "last":
        step = max(int(model.tags["step"]) for model in ready)
    offered = ready if step is None else _of_step(ready, step)
    return min(offered, key=lambda model: (_rank(model), -model.creation_timestamp))


def _rank(model: "LoggedModel") -> float:
    loss = loss_of(model)
    return float("inf") if loss is None else loss


def _version(tracked: MlflowRun, name: str, model: "LoggedModel") -> str:
    import mlflow

    client, source = tracked.client, f"models:/{model.model_id}"
    for version in client.search_model_versions(f"source_path = '{source}'"):
        if version.name == name:
            return str(version.version)
    tags = {"step": model.tags["step"], "checkpoint": model.name}
    if (loss := loss_of(model)) is not None:
        tags["held-out loss"] = f"{loss:.6f}"
    made = mlflow.register_model(source, name, tags=tags)  # where models_of has set the address
    client.update_model_version(name, made.version, model.tags.get(MLFLOW_NOTE))
    return str(made.version)
