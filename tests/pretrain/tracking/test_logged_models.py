"""Logged models: the chosen checkpoints, their evaluations, and the model that MLflow loads from a package."""

import json
import math
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import mlflow.pyfunc
import mlflow.transformers
import pytest

from pretrain.config import TrackConfig
from pretrain.run import Entry, JournalTable, RunFolder
from pretrain.tracking import ModelLogger, Point, RunRecord, Target, logged_models, register
from pretrain.tracking.logged_models import Candidate, chosen, evaluation
from pretrain.tracking.mlflow_runs import MLFLOW_NOTE, MODEL_TAG, MlflowRun
from pretrain.tracking.model_package import card_text, write_package
from tests.support.configs import LEAST
from tests.support.finetuning import tiny_model
from tests.support.runs import wait_for, write_config

PYTHON = sys.executable


def candidate(step: int, loss: float | None, averaged: bool = False) -> Candidate:
    name = "eval/ema_loss" if averaged else "eval/loss"
    return Candidate(step, averaged, Path(), 0.0, {} if loss is None else {name: Point(name, loss, 0.0, step)})


# Of each step the weights and their average.
LOSSES = {10: (6.0, 5.9), 20: (None, 5.95), 30: (5.5, 5.6)}
OFFERED = [candidate(step, loss, bool(n)) for step, losses in LOSSES.items() for n, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("which", "logged", "names"),
    [
        ("all", [], [one.name for one in OFFERED]),
        ("last", [], ["step-00000030", "step-00000030-ema"]),
        ("best", [], ["step-00000010", "step-00000010-ema", "step-00000030"]),
        ("best", [5.92], ["step-00000010-ema", "step-00000030"]),
        ("best", [5.5], []),
    ],
)
def test_chosen(which: str, logged: list[float], names: list[str]) -> None:
    assert [one.name for one in chosen(OFFERED, which, logged)] == names


def test_an_evaluation_has_the_valid_value_and_the_time_that_mlflow_has_it_with(tmp_path: Path) -> None:
    lines = [
        Entry(4, 100.0, {"train/loss": 6.0}),
        Entry(4, 101.0, {"eval/loss": 5.5, "eval/masked_accuracy": 0.1, "eval/seconds": 2.0}),
        Entry(8, 102.0, {"eval/loss": 5.0}),
        Entry(4, 201.0, {"eval/loss": 5.5, "eval/masked_accuracy": 0.2, "eval/seconds": 3.0}),
    ]
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(entry.to_line() for entry in lines))
    found = evaluation(JournalTable.read(path), 4)
    assert list(found.values()) == [Point("eval/loss", 5.5, 101.0, 4), Point("eval/masked_accuracy", 0.2, 201.0, 4)]
    assert evaluation(JournalTable.read(path), 5) == {}


def test_after_a_run_went_back_the_later_model_of_a_step_is_registered(tmp_path: Path, monkeypatch) -> None:
    """Its loss is higher here. A checkpoint that is there is logged first, if MLflow has an older one or not."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    write_config(tmp_path / "config.yaml", LEAST | {"track": {"uri": uri}})
    (tmp_path / "journal.jsonl").touch()
    record = RunRecord(uri, "books", "r", {}, {})
    tracked = MlflowRun.open(Target(uri, "books"), record)
    (tmp_path / "mlflow_run.json").write_text(json.dumps(asdict(record)))
    made = []

    def log(step: int, loss: float) -> None:
        tags = {MODEL_TAG: f"{tracked.key}/step-{step:08d}/{len(made)}", "step": str(step), MLFLOW_NOTE: "a model"}
        name = f"step-{step:08d}"
        model = tracked.client.create_logged_model(
            tracked.experiment_id, name=name, source_run_id=tracked.id, tags=tags
        )
        (tmp_path / "MLmodel").write_text("flavors: {}\n")
        tracked.client.log_model_artifacts(model.model_id, str(tmp_path / "MLmodel"))
        tracked.log_points([Point("eval/loss", loss, 1.0, step)], model.model_id)
        tracked.client.finalize_logged_model(model.model_id, "READY")
        made.append(model.model_id)

    for step, loss in ((4, math.nan), (8, 3.0), (12, 2.0), (8, 4.0)):
        log(step, loss)
    assert register(tmp_path, "tiny", "best", alias=None, uri=uri).loss == 2.0, "not 0, which MLflow makes of NaN"
    assert register(tmp_path, "tiny", "8", alias=None, uri=uri).loss == 4.0
    assert register(tmp_path, "tiny", "last", alias=None, uri=uri).loss == 2.0
    (tmp_path / "checkpoints/step-00000008").mkdir(parents=True)
    monkeypatch.setattr(logged_models, "log_models", lambda run, which, step, *_: log(step, 5.0))
    assert register(tmp_path, "tiny", "8", alias=None, uri=uri).loss == 5.0
    assert register(tmp_path, "tiny", "last", alias=None, uri=uri).model == "step-00000008"


def logger(run: Path, command: str, which: str = "all") -> ModelLogger:
    """Its passes run another program."""
    track = TrackConfig(uri="http://127.0.0.1:1", models=which)
    return ModelLogger(RunFolder(run), track, last_seconds=1.0, command=[command])


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_training_waits_for_no_pass_and_its_end_for_a_bounded_time(tmp_path, capsys) -> None:
    sleeper = program(tmp_path / "sleeper", f"echo $$ >>{tmp_path}/begun; exec sleep 60")
    started, waiting = time.monotonic(), logger(tmp_path, sleeper)
    waiting.committed()
    waiting.committed()
    assert time.monotonic() - started < 20  # the pass takes 60 s
    wait_for(lambda: (tmp_path / "begun").exists(), 20)
    started = time.monotonic()
    waiting.close(completed=True)
    assert time.monotonic() - started < 15.0
    (process,) = (tmp_path / "begun").read_text().split()  # one pass for two checkpoints
    assert not Path("/proc", process).exists()  # nothing is left behind
    assert f"maskwright track models {tmp_path} --which all" in capsys.readouterr().err


def test_a_run_that_stops_ends_its_pass_and_a_completed_one_looks_once_more(tmp_path, capsys) -> None:
    nothing = program(tmp_path / "nothing", f"echo $@ >>{tmp_path}/begun")
    for which in ("last", "none"):
        logger(tmp_path, nothing, which).committed()
    assert not (tmp_path / "models.log").exists(), "last begins nothing while the run goes on"
    logger(tmp_path, nothing).close(completed=False)
    assert not (tmp_path / "begun").exists()
    logger(tmp_path, nothing).close(completed=True)
    assert (tmp_path / "begun").read_text() == f"{tmp_path} all 0\n"
    assert capsys.readouterr().err == ""


def test_a_pass_ends_with_its_parent(tmp_path: Path) -> None:
    code = "import sys, time; from pretrain.tracking import model_logger; "
    code += "sys.modules['pretrain.tracking.logged_models'] = sys; "
    code += "sys.log_models = lambda *_, **__: print('begun', flush=True) or time.sleep(60); "
    code += "sys.argv[1:] = ['run', 'all', '0']; model_logger.main()"
    parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {code!r}]).wait())"
    process = subprocess.Popen([PYTHON, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    process.kill()
    assert process.stdout.read() == b""  # the pipe closes when the pass, its last writer, exits
    process.wait(20)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exported = tiny_model(tmp_path_factory.mktemp("exported"))
    (exported / "README.md").write_text("---\ntags: [fill-mask]\n---\n# tiny\n\nA model.\n")
    out = tmp_path_factory.mktemp("package") / "tiny"
    model = SimpleNamespace(artifact_location="file:///artifacts", model_id="m-1")
    write_package(exported, out, model, "0" * 32, "tiny/step-1")  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def model(package: Path) -> mlflow.pyfunc.PyFuncModel:
    return mlflow.pyfunc.load_model(str(package))


def test_the_likeliest_token_for_each_mask(model: mlflow.pyfunc.PyFuncModel, package: Path) -> None:
    texts = ["where is [MASK]", "[MASK] is in york"]
    fill = mlflow.transformers.load_model(str(package))
    assert model.predict(texts) == [guesses[0]["token_str"] for guesses in fill(texts)]


def test_the_package_needs_nothing_of_maskwright_and_has_no_code(package: Path, tmp_path: Path) -> None:
    assert not {path.suffix for path in package.rglob("*")} & {".py", ".pkl", ".bin", ".pt"}
    code = (
        "import sys, mlflow.pyfunc; print(len(mlflow.pyfunc.load_model(sys.argv[1]).predict(['is [MASK]'])));"
        "assert not {'pretrain', 'launchers', 'data_prep'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_a_model_card_is_shown_without_its_metadata(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\ntags: [fill-mask]\n---\n# tiny\n\n" + "A model. " * 2000)
    text = card_text(tmp_path)
    assert text.startswith("# tiny")
    assert len(text) == 8000
