"""Data sets of a run as MLflow dataset inputs."""

import json
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from data_prep.reader import Dataset
from data_prep.remote import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_LONGEST_DIGEST = 36  # MLflow's limit
_CONTEXT = "mlflow.data.context"


def describe_input(dataset: Dataset, context: Literal["training", "eval"]) -> dict[str, str]:
    """A data set in the form that mlflow_run.json keeps: the fields of MLflow's Dataset, and the context.

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
        "name": input_name(location),
        "digest": manifest.fingerprint[:_LONGEST_DIGEST],
        "source": json.dumps({"uri": location}),
        "schema": json.dumps({"mlflow_tensorspec": [tokens]}),
        "profile": json.dumps(profile),
    }


def input_name(location: str) -> str:
    """A data set's name in MLflow: the last two parts of its path, such as books/train."""
    return "/".join(PurePosixPath(location.rstrip("/")).parts[-2:])


def send_inputs(client: "MlflowClient", run: "Run", inputs: Iterable[dict[str, str]]) -> None:
    """Log the data sets that the run does not have yet."""
    from mlflow.entities import Dataset as Named
    from mlflow.entities import DatasetInput, InputTag

    there = run.inputs.dataset_inputs if run.inputs else []
    known = {(one.dataset.name, one.dataset.digest) for one in there}
    new = [
        DatasetInput(
            Named(one["name"], one["digest"], "local", one["source"], one["schema"], one["profile"]),
            [InputTag(_CONTEXT, one["context"])],
        )
        for one in inputs
        if (one["name"], one["digest"]) not in known
    ]
    if new:
        client.log_inputs(run.info.run_id, datasets=new)
