"""The page of MLflow that shows a run."""

import re
import shlex

from pretrain.tracking.address import address_problem
from pretrain.tracking.record import RunRecord

_PORT = "http://127.0.0.1:5000"  # of `mlflow ui`
_TRAINING = "workflowType=machine_learning"  # without it MLflow 3.17 opens an experiment on its pages for agents


def run_page(record: RunRecord) -> str | None:
    """Where to see a run in MLflow: an address, for a database with the command that serves it; None if unknown."""
    known = re.fullmatch("[0-9a-f]{32}", record.run_id or "") and re.fullmatch(r"\d+", record.experiment_id or "")
    if not known or address_problem(record.uri):
        return None
    page = f"#/experiments/{record.experiment_id}/runs/{record.run_id}?{_TRAINING}"
    if record.uri.startswith(("http://", "https://")):
        return f"{record.uri.rstrip('/')}/{page}"
    if "***" in record.uri or record.uri.startswith("databricks"):
        return None
    return f"mlflow ui --backend-store-uri {shlex.quote(record.uri)}   then open {_PORT}/{page}"
