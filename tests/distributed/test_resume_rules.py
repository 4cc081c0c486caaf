"""From which checkpoint a run goes on, for every value of run.resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from data_prep.errors import UserError
from pretrain import checkpoint, train
from pretrain.config import Config
from pretrain.run_folder import RunFolder
from tests.support.kill_commit import save

IDENTITY = {"run.seed": 7, "masking.rate": 0.15}


@pytest.fixture(autouse=True, scope="module")
def _group(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder with checkpoints of steps 4 and 8."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for step in (4, 8):
        checkpoint.commit(folder.checkpoints, step, {"identity": IDENTITY}, save, keep=2)
    return folder.path


def damage(run: Path, step: int) -> None:
    path = run / f"checkpoints/step-{step:08d}/deepspeed/model.pt"
    path.write_bytes(path.read_bytes()[::-1])


def start(run: Path, identity: dict[str, Any] = IDENTITY, steps: int = 100, **settings: Any) -> int | None:
    """The step that a run would go on from; None for the beginning."""
    values = {"run": {"dir": str(run), **settings}, "data": {"train": "x"}, "train": {"steps": steps}}
    found = train._find_start(Config.model_validate(values), RunFolder(run), identity)
    return found.step if found else None


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        start(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_auto_and_required_take_the_newest_sound_one(run, capsys):
    assert start(run) == 8
    assert start(run, resume="required") == 8
    damage(run, 8)
    assert start(run) == 4
    assert start(run, resume="required") == 4
    assert "step-00000008 is damaged and passed over" in capsys.readouterr().out


def test_an_empty_run_starts_only_under_auto_and_never(tmp_path):
    RunFolder(tmp_path).create()
    assert start(tmp_path) is None
    assert start(tmp_path, resume="never") is None
    assert "run.resume is required, and there is no checkpoint" in refusal(tmp_path, resume="required")


@pytest.mark.parametrize("resume", ["auto", "required"])
def test_all_damaged_never_starts_again(run, resume):
    damage(run, 4)
    damage(run, 8)
    assert "no checkpoint is intact" in refusal(run, resume=resume)


def test_never_refuses_what_exists(run):
    assert "step-00000008 exists although run.resume is never" in refusal(run, resume="never")


def test_a_named_checkpoint(run, tmp_path):
    four = run / "checkpoints/step-00000004"
    assert start(run, resume=str(four)) == 4
    damage(run, 4)
    assert "named by run.resume is damaged" in refusal(run, resume=str(four))
    assert "none/manifest.json cannot be used" in refusal(run, resume=str(tmp_path / "none"))


def test_changes_need_to_be_allowed(run):
    changed = json.loads(json.dumps(IDENTITY)) | {"run.seed": 8}
    message = refusal(run, changed)
    assert "run.seed was 7 and is 8" in message
    assert "masking" not in message
    assert start(run, changed, allow_changes=True) == 8


def test_a_run_can_be_longer_but_not_shorter_than_its_checkpoint(run):
    assert start(run, steps=8) == 8
    assert "is past train.steps (7)" in refusal(run, steps=7)
