"""The MLflow run of a run folder, and the parent that the runs of a study share."""

import hashlib
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pretrain.tracking.inputs import send_inputs
from pretrain.tracking.record import RunRecord

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger(__name__)

_KEY_TAG = "maskwright.key"
_STUDY_TAG = "maskwright.study"
_PARENT_TAG = "mlflow.parentRunId"


def open_run(client: "MlflowClient", experiment_id: str, record: RunRecord) -> str:
    """The id of the record's run on this server, which is made where there is none; it has parameters, tags, parent.

    It is found by its key, so that one whose `create_run` was answered to a dead process is found too.
    """
    run = find_run(client, experiment_id, record.key)
    if run:
        if record.status == "RUNNING" != run.info.status:
            client.update_run(run.info.run_id, status="RUNNING")
    else:
        tags = {**record.tags, _KEY_TAG: record.key}
        run = client.create_run(experiment_id, tags=tags, run_name=record.run_name)
    _send_params_and_tags(client, run, record)
    send_inputs(client, run, record.inputs)
    if record.parent:
        _adopt(client, experiment_id, run.info.run_id, record.parent)
    return str(run.info.run_id)


def find_run(client: "MlflowClient", experiment_id: str, key: str) -> "Run | None":
    """The run whose record has this key; None if it is not on this server, or was deleted."""
    found = _tagged(client, experiment_id, _KEY_TAG, key)
    return found[0] if found else None


def _tagged(client: "MlflowClient", experiment_id: str, tag: str, value: str) -> list["Run"]:
    """The experiment's runs with this tag, deleted ones left out; `value` is of letters and digits."""
    found: list[Run] = []
    token = None
    while token != "":
        page = client.search_runs([experiment_id], filter_string=f"tags.`{tag}` = '{value}'", page_token=token)
        found, token = [*found, *page], page.token or ""
    return found


def _send_params_and_tags(client: "MlflowClient", run: "Run", record: RunRecord) -> None:
    """MLflow refuses to change a parameter: one that a resumed run changed becomes the tag `resumed/NAME`."""
    from mlflow.entities import Param, RunTag

    known = run.data.params
    params = {name: value for name, value in record.params.items() if name not in known}
    changed = {f"resumed/{n}": v for n, v in record.params.items() if n in known and known[n] != v}
    tags = {**record.tags, "restarts": str(record.restarts), **changed}
    client.log_batch(
        run.info.run_id,
        params=[Param(name, value) for name, value in params.items()],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )


def _adopt(client: "MlflowClient", experiment_id: str, run_id: str, parent: str) -> None:
    """Make the run a child of the one whose id is `parent`, or else of the one that is called so."""
    if re.fullmatch(r"[0-9a-f]{32}", parent) and _exists(client, parent):
        client.set_tag(run_id, _PARENT_TAG, parent)
        return
    study = hashlib.sha256(parent.encode()).hexdigest()[:32]
    while True:
        parents = sorted(run.info.run_id for run in _tagged(client, experiment_id, _STUDY_TAG, study))
        if not parents:
            made = client.create_run(experiment_id, tags={_STUDY_TAG: study}, run_name=parent)
            client.set_terminated(made.info.run_id)  # it only holds its children
            continue
        # MLflow cannot create a run unless it is there: children that begin at once may make several. Whoever sees
        # that keeps the first by id, and looks again after having moved there, as another may have done the same.
        chosen, others = parents[0], parents[1:]
        _merge(client, experiment_id, chosen, others)
        client.set_tag(run_id, _PARENT_TAG, chosen)
        if not others and [run.info.run_id for run in _tagged(client, experiment_id, _STUDY_TAG, study)] == [chosen]:
            return


def _merge(client: "MlflowClient", experiment_id: str, chosen: str, others: Iterable[str]) -> None:
    for other in others:
        for child in _tagged(client, experiment_id, _PARENT_TAG, other):
            client.set_tag(child.info.run_id, _PARENT_TAG, chosen)
        client.delete_run(other)


def _exists(client: "MlflowClient", run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        _log.warning("MLflow has no run %s: track.parent is taken for a name", run_id)
        return False
