"""`maskwright audit`: a clean run passes, and each kind of change is named."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from pretrain.run import RunFolder
from tests.support import runs
from tests.support.datasets import flip


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of the run, to change."""
    return shutil.copytree(finished, tmp_path / "run")


def audit(run: Path, *options: str) -> tuple[int, str]:
    done = runs.maskwright("audit", run, *options)
    return done.returncode, done.stdout + done.stderr


def test_a_clean_run_passes_bit_for_bit(run):
    code, said = audit(run)
    assert code == 0, said
    equal = "batches, losses, gradient norms, and the weights of step-00000024"
    assert f"steps 17 to 24 are equal bit for bit: {equal}" in said
    assert not run.with_name("run-audit").exists()


def test_other_processes_are_equal_within_the_tolerance(run):
    code, said = audit(run, "--procs", "1")
    assert code == 0, said
    assert "equal within 0.001 (different: processes" in said


def test_an_edited_loss_is_named(run):
    journal = run / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["step"] == 20 and "train/loss" in line["metrics"]:
            line["metrics"]["train/loss"] -= 0.01
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, said = audit(run)
    assert code == 1
    assert "step 20 is the first that differs: train/loss is" in said
    assert run.with_name("run-audit").exists()
    again = runs.succeed("audit", run, "--steps", "9:16", "--json")
    assert json.loads(again.stdout) == {"start": 8, "end": 16, "weights": True, "allowed": 0.0, "difference": None}


def test_a_flipped_bit_in_a_checkpoint_is_named(run):
    (file,) = (run / "checkpoints" / "step-00000024").rglob("mp_rank_00_model_states.pt")
    flip(file)
    code, said = audit(run)
    assert code == 1
    assert "step-00000024 is damaged" in said
    assert "mp_rank_00_model_states.pt" in said


def test_another_seed_and_another_shard_are_named(data, run, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"run": config["run"] | {"seed": 8}}))
    code, said = audit(run)
    assert code == 1
    assert "run.seed was 7 and is 8" in said
    copy = shutil.copytree(data, tmp_path / "data")
    (shard,) = (copy / "train").rglob("*.tar")
    content = bytearray(shard.read_bytes())
    for place_ in range(2000, len(content), 3000):
        content[place_] ^= 1
    shard.write_bytes(content)
    config["data"]["train"][0]["path"] = str(copy / "train")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    code, said = audit(run)
    assert code == 1
    assert "cannot be repeated" in said
    assert shard.name in said


def test_a_folder_that_no_ended_audit_made_is_left_alone(run, tmp_path):
    """Of an audit that still trains in it, of the user, and behind a link."""
    work = RunFolder(run.with_name("run-audit"))
    work.create()
    (work.path / "audit.log").touch()
    refusal = "run-audit is of an audit that still runs, or no audit made it"
    with work.lock():
        code, said = audit(run)
    assert code == 1
    assert refusal in said
    assert (work.path / "audit.log").exists()
    shutil.rmtree(work.path)
    work.path.mkdir()
    (work.path / "notes.txt").write_text("of the user")
    assert refusal in audit(run)[1]
    assert (work.path / "notes.txt").read_text() == "of the user"
    shutil.rmtree(work.path)
    work.path.symlink_to(tmp_path)
    assert refusal in audit(run)[1]


def test_a_run_without_a_checkpoint_cannot_be_audited(run):
    shutil.rmtree(run / "checkpoints")
    code, said = audit(run)
    assert code == 1
    assert "has no checkpoint" in said
