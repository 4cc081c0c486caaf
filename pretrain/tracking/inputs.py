"""Data sets of a run as MLflow dataset inputs."""

import json
from pathlib import PurePosixPath
from typing import Literal

from data_prep.reader import Dataset
from data_prep.remote import redact

_LONGEST_DIGEST = 36  # MLflow's limit


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
