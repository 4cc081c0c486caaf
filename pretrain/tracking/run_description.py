"""Describe a run for MLflow: tags and data sets."""

import json
from pathlib import PurePosixPath
from typing import Any, Literal

from data_prep.format import Dataset
from data_prep.urls import redact

_LONGEST_DIGEST = 36  # MLflow's limit


def run_tags(dataset: str, environment: dict[str, Any]) -> dict[str, str]:
    """Tags of a start of a run; of several starts, MLflow keeps the last one's.

    Args:
        dataset: fingerprint of the training data.
        environment: as pretrain.reporting.environment.gather_environment gives it.
    """
    commit = environment["git_commit"]
    slurm = environment["slurm"]
    tags = {
        "dataset": dataset,
        "git_commit": commit or "unknown",
        "git_changes": "true" if environment["git_changes"] else None,
        "mlflow.source.git.commit": commit,  # the interface shows this one as the version
        "mlflow.source.name": "maskwright train",
        "maskwright_version": environment["packages"]["maskwright"],
        "world_size": str(environment["processes"]),
        "hosts": ", ".join(host["host"] for host in environment["hosts"]),
        "slurm_job_id": slurm.get("SLURM_ARRAY_JOB_ID", slurm.get("SLURM_JOB_ID")),
        "slurm_array_task_id": slurm.get("SLURM_ARRAY_TASK_ID"),
    }
    return {name: value for name, value in tags.items() if value is not None}


def describe_input(dataset: Dataset, context: Literal["training", "eval"]) -> dict[str, str]:
    """A data set as mlflow_run.json keeps it: the fields of MLflow's Dataset, and the context.

    The digest is the beginning of the fingerprint. Schema and profile are JSON, in the forms that MLflow's pages show.
    """
    manifest, location = dataset.manifest, redact(str(dataset.location))
    tokens = {"name": "tokens", "type": "tensor", "tensor-spec": {"dtype": manifest.dtype, "shape": [-1]}}
    profile = {
        "documents": manifest.totals.documents,
        "tokens": manifest.totals.tokens,
        "shards": len(manifest.shards),
        "vocabulary": manifest.tokenizer.vocab_size,
        "fingerprint": manifest.fingerprint,
    }
    return {
        "context": context,
        "name": "/".join(PurePosixPath(location.rstrip("/")).parts[-2:]),  # such as books/train
        "digest": manifest.fingerprint[:_LONGEST_DIGEST],
        "source": json.dumps({"uri": location}),
        "schema": json.dumps({"mlflow_tensorspec": [tokens]}),
        "profile": json.dumps(profile),
    }
