"""A run's logged model in MLflow's model registry."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.errors import UserError
from data_prep.reading import parse_json
from pretrain.logged_models import is_ready, log_models, loss_of, models_of
from pretrain.model_package import MLFLOW_NOTE
from pretrain.tracked_run import TrackedRun, errors_in_a_sentence

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_VERSIONS = "mlflow.modelVersions"  # the tag by which MLflow's page of a logged model names its versions


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
        uri: as in TrackedRun.find.

    Raises:
        UserError: if there is no such model, or MLflow does not take it.
    """
    step = int(which) if which.isdecimal() else None
    if step is None and which not in ("best", "last"):
        raise UserError(f"--step {which} is neither a step nor best or last")
    with errors_in_a_sentence(f"registering a model of {run} in MLflow"):
        tracked = TrackedRun.find(run, uri)
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


def _version(tracked: TrackedRun, name: str, model: "LoggedModel") -> str:
    import mlflow

    client, source = tracked.client, f"models:/{model.model_id}"
    mlflow.set_tracking_uri(client.tracking_uri)  # where the registry of a SQLite file looks for the model
    if not _exists(client, name):
        client.create_registered_model(name)
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == source:
            return version.version
    tags = {"step": model.tags["step"], "checkpoint": model.name}
    if (loss := loss_of(model)) is not None:
        tags["held-out loss"] = f"{loss:.6f}"
    card = model.tags.get(MLFLOW_NOTE)
    made = client.create_model_version(name, source, tracked.run_id, tags, description=card, model_id=model.model_id)
    versions = _links(model.tags.get(_VERSIONS, "[]"))
    link = {"name": name, "version": int(made.version)}
    client.set_logged_model_tags(model.model_id, {_VERSIONS: json.dumps([*versions, link])})
    return made.version


def _links(text: str) -> list[dict[str, Any]]:
    """The versions that a tag names; none where somebody has written something else there."""
    try:
        found: list[dict[str, Any]] = parse_json(text, list[dict[str, Any]])
    except ValueError:
        return []
    return found


def _exists(client: "MlflowClient", name: str) -> bool:
    quoted = name.replace("'", "\\'")
    return bool(client.search_registered_models(f"name = '{quoted}'"))
