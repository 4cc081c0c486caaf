"""A run's logged model in MLflow's model registry."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.errors import UserError
from pretrain.tracking.logged_models import is_ready, log_models, loss_of, models_of
from pretrain.tracking.mlflow_runs import MlflowRun, short_errors
from pretrain.tracking.model_package import MLFLOW_NOTE

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel


@dataclass(frozen=True)
class Registered:
    """A version of a registered model, and what it was made from; `loss` is infinite if it was not measured."""

    name: str
    version: str
    model: str
    loss: float


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
        if step is None or step not in [_step(model) for model in _ready(tracked)]:
            log_models(run, which if step is None else "all", step, uri)
        model = _choose(_ready(tracked), run, which)
        version = _version(tracked, name, model)
        if alias:
            tracked.client.set_registered_model_alias(name, alias, version)
    return Registered(name, version, model.name, loss_of(model))


def _ready(tracked: MlflowRun) -> list["LoggedModel"]:
    return [model for model in models_of(tracked) if is_ready(model)]


def _step(model: "LoggedModel") -> int:
    return int(model.tags["step"])


def _choose(models: list["LoggedModel"], run: Path, which: str) -> "LoggedModel":
    """The lowest loss, and of equals, or where there is none, the model that was logged last."""
    if not models:
        raise UserError(f"{run} has no checkpoint to register")
    if which != "best":
        step = max(map(_step, models)) if which == "last" else int(which)
        models = [model for model in models if _step(model) == step]
    elif math.isinf(min(map(loss_of, models))):
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
    made = mlflow.register_model(source, name, tags=tags)  # where models_of has set the address
    client.update_model_version(name, made.version, model.tags.get(MLFLOW_NOTE))
    return str(made.version)
