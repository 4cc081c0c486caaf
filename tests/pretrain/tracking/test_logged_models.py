"""Which checkpoints become models, and which evaluation is theirs."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pretrain.run import RunFolder, read_measured
from pretrain.run.journal import Entry, format_entry
from pretrain.tracking import Point, Target, model_logger
from pretrain.tracking.logged_models import Candidate, chosen, evaluation
from pretrain.tracking.model_logger import ModelLogger

PYTHON = sys.executable


def candidate(step: int, loss: float | None, averaged: bool = False) -> Candidate:
    name = "eval/ema_loss" if averaged else "eval/loss"
    return Candidate(step, averaged, Path(), 0.0, {} if loss is None else {name: Point(name, loss, 0.0, step)})


OFFERED = [
    candidate(10, 6.0),
    candidate(10, 5.9, averaged=True),
    candidate(20, None),
    candidate(20, 5.95, averaged=True),
    candidate(30, 5.5),
    candidate(30, 5.6, averaged=True),
]


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
    path.write_bytes(b"".join(format_entry(entry) for entry in lines))
    found = evaluation(read_measured(path), 4)
    assert list(found.values()) == [Point("eval/loss", 5.5, 101.0, 4), Point("eval/masked_accuracy", 0.2, 201.0, 4)]
    assert evaluation(read_measured(path), 5) == {}


@pytest.fixture
def logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelLogger:
    """Whose passes sleep instead."""
    monkeypatch.setattr(model_logger, "LAST_SECONDS", 1.0)
    monkeypatch.setattr(model_logger.sys, "executable", shutil.which("true"))
    return ModelLogger(RunFolder(tmp_path), "all", Target("http://127.0.0.1:1", "demo"))


def test_training_waits_for_no_pass_and_its_end_for_a_bounded_time(
    logger: ModelLogger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text(f"#!{PYTHON}\nimport time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(model_logger.sys, "executable", str(sleeper))
    started = time.monotonic()
    logger.committed()
    logger.committed()
    assert time.monotonic() - started < 0.5
    first = logger._pass
    assert first is not None
    logger.close(completed=True)
    assert time.monotonic() - started < 5.0
    assert first.returncode == -9  # nothing is left behind
    assert f"maskwright track models {tmp_path} --which all" in capsys.readouterr().err


def test_a_run_that_stops_ends_its_pass_and_a_completed_one_looks_once_more(
    logger: ModelLogger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.close(completed=False)
    assert not (tmp_path / "models.log").exists()
    logger.close(completed=True)
    assert (tmp_path / "models.log").exists()
    assert capsys.readouterr().err == ""


def test_last_begins_nothing_while_the_run_goes_on(logger: ModelLogger, tmp_path: Path) -> None:
    for which in ("last", "none"):
        waiting = ModelLogger(RunFolder(tmp_path), which, Target("http://127.0.0.1:1", "demo"))
        waiting.committed()
        assert waiting._pass is None


def test_a_pass_ends_with_its_parent(tmp_path: Path) -> None:
    code = "import sys, time; from pretrain.tracking import model_logger; "
    code += "sys.modules['pretrain.tracking.logged_models'] = sys; "
    code += "sys.log_models = lambda *_: print('begun', flush=True) or time.sleep(60); "
    code += "sys.argv[1:] = ['run', 'all', '0']; model_logger.main()"
    parent = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {code!r}]).wait())"
    process = subprocess.Popen([PYTHON, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.kill()
    assert process.stdout.read() == b""  # which ends when the pass, its last writer, has ended
    process.wait(20)
