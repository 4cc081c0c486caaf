"""`maskwright demo`, with fewer steps."""

import json

import pytest
from mlflow import MlflowClient

from tests.support import runs


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_demo_goes_from_text_to_a_filled_mask_and_goes_on_when_repeated(tmp_path, real):
    """Slow: each of its commands a process that imports all that it needs."""
    few = ("train.steps=6", "eval.every_steps=6", "checkpoint.every_steps=6", "eval.rows=16")
    models = "last" if real else "none"  # logging them takes another process with slow imports
    few += (f"track.models={models}",)
    result = runs.succeed("demo", "--dir", tmp_path, *few, real=real)
    run = tmp_path / "runs/demo"
    assert runs.status(run)["state"] == "completed"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    model = run / "exports/step-00000006"
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ModernBertForMaskedLM"]
    for words in ("unigram entropy of the held-out text", "held-out loss", "Emerald [MASK]", "mlflow ui", "Next: open"):
        assert words in result.stdout, words
    store = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    logged = store.search_logged_models([store.get_experiment_by_name("demo").experiment_id])
    assert [(one.name, str(one.status)) for one in logged] == ([("step-00000006", "READY")] if real else [])

    again = runs.succeed("demo", "--dir", tmp_path, *few)
    assert "already finished" in again.stdout
    assert runs.losses(run).keys() == set(range(1, 7))
