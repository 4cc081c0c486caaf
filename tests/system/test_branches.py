"""`maskwright branch`: a decay from a trunk, and the parent of a run."""

import json
from pathlib import Path

import pytest

from pretrain.run import JournalReader, RunFolder
from pretrain.tracking import RunRecord
from tests.support import runs
from tests.system.soak.soak import assert_same_checkpoint

TRUNK, DECAY = {"name": "stable", "steps": 12}, {"name": "decay", "steps": 6, "schedule": {"kind": "linear"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("branches")
    runs.tiny_data(folder / "data")
    return folder


def config_of(folder: Path, name: str, phases: list[dict]) -> Path:
    settings = {"train": {"global_batch_size": 8, "precision": "fp32"}, "eval__every_steps": 6}
    settings |= {"schedule": {"kind": "constant", "warmup_steps": 3}, "checkpoint": {"every_steps": 4, "keep": 9}}
    run = folder / "runs" / name
    run.parent.mkdir(exist_ok=True)
    return runs.config_file(folder / "data", run, phases=phases, **settings)


@pytest.fixture(scope="module")
def trunk(folder) -> Path:
    runs.succeed("train", config_of(folder, "trunk", [TRUNK]), "--procs", "2")
    return folder / "runs" / "trunk"


def test_a_decay_from_a_trunk_equals_the_run_that_had_it_from_the_start(folder, trunk):
    recipe = [TRUNK | {"steps": 8}, DECAY]
    runs.succeed("train", config_of(folder, "whole", recipe), "--procs", "2")
    stopped = runs.maskwright(
        "branch", f"{trunk}@8", config_of(folder, "branch", recipe), "run.stop_after=10", "--procs", "2"
    )
    assert stopped.returncode == 75, stopped.stderr
    runs.succeed("branch", f"{trunk}@8", config_of(folder, "branch", recipe), "--procs", "2")
    branch, whole = (RunFolder(folder / "runs" / name) for name in ("branch", "whole"))
    losses = runs.losses(branch.path)
    assert losses == {step: loss for step, loss in runs.losses(whole.path).items() if step > 8}
    assert_same_checkpoint(whole, branch, 14)
    rates = {entry.step: entry.metrics.get("train/learning_rate") for entry in JournalReader(branch.journal).entries()}
    assert rates[14] == pytest.approx(2e-3 / 6)


def test_status_and_mlflow_know_the_parent(folder, trunk):
    shown = runs.maskwright("status", folder / "runs" / "branch", "--follow").stdout
    assert "branch | completed | decay | step 14 of 14 | loss " in shown
    assert f"{trunk}@8" in shown
    found = json.loads(runs.maskwright("status", folder / "runs", "--json").stdout)
    wanted = {"branch": ("decay", f"{trunk}@8"), "trunk": ("stable", None), "whole": ("decay", None)}
    assert {Path(run["run"]).name: (run["phase"], run["parent"]) for run in found} == wanted
    of_trunk, of_branch = (RunRecord.require(folder / "runs" / name) for name in ("trunk", "branch"))
    assert of_branch.parent == of_trunk.run_id
