"""Choice of the checkpoint to resume from, for every value of run.resume."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from data_prep.common.errors import UserError
from data_prep.common.reading import typed
from data_prep.format import WeightList
from pretrain import checkpoint
from pretrain.config import Config, MaskingConfig
from pretrain.data import MixturePosition, Sources
from pretrain.masking import cached_weights
from pretrain.model import weights_digest
from pretrain.resuming import ResumeState, checkpoint_state, find_start, start_state
from pretrain.run import RunFolder
from tests.support.checkpoints import commit
from tests.support.configs import least_config
from tests.support.datasets import make_dataset

AT = typed(MixturePosition, {"dealt": 24, "sources": [{"epoch": 1, "window": 0, "row": 3, "past": []}]})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Sources:
    dataset = make_dataset(tmp_path_factory.mktemp("data") / "set", [[5, 6, 7]] * 9)
    return Sources(("set",), (dataset,), ((1.0,),), (None,))


pytestmark = pytest.mark.usefixtures("one_rank")


def beginning(*epochs: int) -> MixturePosition:
    """The beginning of an epoch of each data set, after 24 rows."""
    sources = [{"epoch": epoch, "window": 0, "row": 0, "past": []} for epoch in epochs]
    return typed(MixturePosition, {"dealt": 24, "sources": sources})


def config_of(run: Path, steps=100, stage=1, rate=0.15, remote=None, objective="mlm", data=(), phases=(), **settings):
    """settings: of the section `run`."""
    sections = {"train": {"steps": steps}, "zero": {"stage": stage}, "masking": {"rate": rate}}
    sections |= {"checkpoint": {"remote": remote}, "objective": objective, "data": dict(data), "phases": [*phases]}
    return least_config(run={"dir": str(run), **settings}, model={"max_positions": 256}, **sections)


@pytest.fixture
def run(tmp_path, data) -> Path:
    """A run folder with checkpoints of steps 4 and 8."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for step in (4, 8):
        state = checkpoint_state(config_of(folder.path), data, ResumeState(step, AT, replaced_tokens=7))
        commit(folder.checkpoints, step, state)
    return folder.path


def damage(run: Path, step: int) -> None:
    path = run / f"checkpoints/step-{step:08d}/deepspeed/model.pt"
    path.write_bytes(path.read_bytes()[::-1])


@pytest.fixture
def start(data):
    """The step that a run would resume from; None for the beginning."""

    def starter(run: Path, **settings: Any) -> int | None:
        saved = find_start(config_of(run, **settings), RunFolder(run), data)
        return saved.step if saved else None

    return starter


@pytest.fixture
def refusal(start):
    def refused(run: Path, **settings: Any) -> str:
        with pytest.raises(UserError) as caught:
            start(run, **settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def test_auto_and_required_take_the_newest_sound_one(run, start, capsys):
    assert start(run) == 8
    assert start(run, resume="required") == 8
    damage(run, 8)
    assert start(run) == 4
    assert start(run, resume="required") == 4
    assert "step-00000008 is damaged and skipped" in capsys.readouterr().err


def test_other_data_at_the_path_of_a_phase_that_has_not_begun_are_told(tmp_path, capsys):
    first, late = tmp_path / "first", tmp_path / "late"
    make_dataset(first, [[5, 6, 7]] * 9)
    make_dataset(late, [[8, 9, 10]] * 9)
    phases = [{"name": "a", "steps": 6}, {"name": "b", "steps": 6, "data": {"train": str(late)}}]
    values = {"run": {"dir": str(tmp_path / "run")}, "data": {"train": str(first)}, "train": {}, "phases": phases}
    config, folder = Config.model_validate(values), RunFolder(tmp_path / "run")
    folder.create()
    commit(folder.checkpoints, 4, checkpoint_state(config, Sources.open(config), ResumeState(4, AT)))
    assert find_start(config, folder, Sources.open(config)) is not None
    assert "phase" not in capsys.readouterr().err, "nothing has changed"
    shutil.rmtree(late)
    now = make_dataset(late, [[8, 9, 11]] * 9).manifest.fingerprint[:16]
    assert find_start(config, folder, Sources.open(config)) is not None
    said = "Changed before the phase begins: phases.b.data.train is another data set at the same path (fingerprint"
    assert f"{said} {now})" in capsys.readouterr().err


def test_an_empty_run_starts_only_under_auto_and_never(tmp_path, start, refusal):
    RunFolder(tmp_path).create()
    assert start(tmp_path) is None
    assert start(tmp_path, resume="never") is None
    assert "run.resume is required, and there is no checkpoint" in refusal(tmp_path, resume="required")


def test_checkpoints_are_never_passed_over(run, refusal):
    assert "step-00000008 exists although run.resume is never" in refusal(run, resume="never")
    damage(run, 4)
    damage(run, 8)
    for resume in ("auto", "required"):
        assert "no checkpoint can be used" in refusal(run, resume=resume)


def test_a_checkpoint_with_a_key_of_another_version_is_not_called_damaged(tmp_path, data, refusal, capsys):
    folder = RunFolder(tmp_path)
    folder.create()
    state = checkpoint_state(config_of(tmp_path), data, ResumeState(4, AT))
    state["config"]["train"]["label_smoothing"] = 0.0
    commit(folder.checkpoints, 4, state)
    said = "was written by another version of Maskwright, whose config has train.label_smoothing"
    assert said in refusal(tmp_path)
    assert "step-00000004 is of another version and skipped" in capsys.readouterr().err


def test_a_named_checkpoint_of_this_run(run, start, refusal):
    four = run / "checkpoints/step-00000004"
    assert start(run, resume=str(four)) == 4
    damage(run, 4)
    assert "named by run.resume cannot be used" in refusal(run, resume=str(four))
    assert "none/manifest.json: there is no such file" in refusal(run, resume=str(run / "checkpoints/none"))


def test_a_run_that_went_back_goes_on_from_its_own_checkpoints(run, data, start):
    four = run / "checkpoints/step-00000004"
    checkpoint.set_aside(run / "checkpoints", 4)
    state = checkpoint_state(config_of(run, resume=str(four)), data, ResumeState(6, AT))
    commit(run / "checkpoints", 6, state)
    assert start(run, resume=str(four)) == 6


def test_a_checkpoint_of_another_run_needs_trust(run, tmp_path, start, refusal):
    RunFolder(tmp_path / "new").create()
    four = str(run / "checkpoints/step-00000004")
    assert "pass run.trust_checkpoint=true" in refusal(tmp_path / "new", resume=four)
    assert start(tmp_path / "new", resume=four, trust_checkpoint=True) == 4


@pytest.mark.parametrize("resume", ["auto", "required"])
def test_a_lost_run_folder_goes_on_from_its_copies(run, tmp_path, data, start, refusal, capsys, resume):
    url, again = f"file://{run}/checkpoints", tmp_path / "again"
    RunFolder(again).create()
    assert start(again, remote=url, resume=resume) == 8
    assert capsys.readouterr().err == f"fetching step-00000008 from {url}\n"
    assert checkpoint.verify(again / "checkpoints/step-00000008") is None
    damage(run, 8)
    assert start(again, remote=url, resume=resume) == 8, "what is here is not fetched again"
    assert start(again, remote="file:///nowhere/at/all", resume=resume) == 8


def test_a_branch_goes_on_from_its_own_checkpoints_and_their_copies(run, tmp_path, data, start):
    """However the path of its parent's checkpoint is written."""
    four, branch, again = f"{run}/checkpoints/step-00000004", tmp_path / "branch", tmp_path / "again"
    for path in (branch, again):
        RunFolder(path).create()
    state = checkpoint_state(config_of(branch, resume=four), data, ResumeState(6, AT))
    commit(branch / "checkpoints", 6, state)
    for resume in (four, f"{four}/", f"{tmp_path}/./run/checkpoints/step-00000004"):
        assert start(branch, resume=resume, trust_checkpoint=True) == 6
    assert start(branch, resume=f"{run}/checkpoints/step-00000008", trust_checkpoint=True) == 8
    assert start(again, resume=four, trust_checkpoint=True, remote=f"file://{branch}/checkpoints") == 6


def test_a_remote_with_checkpoints_is_never_passed_over_silently(run, tmp_path, start, refusal):
    url, again = f"file://{run}/checkpoints", tmp_path / "again"
    RunFolder(again).create()
    assert f"{url} has checkpoints although run.resume is never" in refusal(again, remote=url, resume="never")
    assert "masking.rate was 0.15 and is 0.3" in refusal(again, remote=url, rate=0.3)
    (again / "checkpoints/step-00000008").rename(tmp_path / "gone")
    damage(run, 4)
    damage(run, 8)
    assert f"{url}: no copy is intact" in refusal(again, remote=url)
    assert "nowhere://x cannot be opened" in refusal(again, remote="nowhere://x")
    assert start(again, remote=f"file://{tmp_path}/empty") is None
    assert "there is no checkpoint in it" in refusal(again, remote=f"file://{tmp_path}/empty", resume="required")


def begun_from(run: Path, weights: bytes, weight: float) -> Config:
    """A run that begins with these weights, and selects tokens with this weight, of a list at a new place."""
    (run / "model.safetensors").write_bytes(weights)
    path = Path(mkdtemp(dir=run)) / "list"
    WeightList("0" * 64, [weight] * 1000).write(path)
    config = config_of(run)
    model = config.model.model_copy(update={"init": run})
    masking = MaskingConfig.model_validate({"selection": {"weights": str(path)}})
    return config.model_copy(update={"model": model, "masking": masking})


def test_changes_are_refused_by_name_and_can_be_allowed(tmp_path, data):
    """Lists and weights count by content. tests/pretrain/checkpoint/test_identity.py has the other settings."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    before = begun_from(folder.path, b"one", 2.0)
    state = ResumeState(8, AT, init=weights_digest(folder.path))
    commit(folder.checkpoints, 8, checkpoint_state(before, data, state))
    for weights, weight, named in (
        (b"one", 2.0, []),
        (b"one", 3.0, ["masking.selection.weights (content) was "]),
        (b"another", 3.0, ["masking.selection.weights (content) was ", "model.init (weights) was "]),
    ):
        now = begun_from(folder.path, weights, weight)
        if named:
            with pytest.raises(UserError, match=r"pass run\.allow_changes=true") as caught:
                find_start(now, folder, data)
            assert all(text in str(caught.value) for text in named)
            assert str(caught.value).count(" was ") == len(named), f"another change is named too: {caught.value}"
        allowed = now.model_copy(update={"run": now.run.model_copy(update={"allow_changes": bool(named)})})
        assert find_start(allowed, folder, data).step == 8


def begun_in_phase(run: Path, weight: float, strategies: tuple[str, str]) -> Config:
    """A run whose second phase, after 4 steps, selects tokens with this weight and mixes strategies in this order."""
    cached_weights.cache_clear()
    WeightList("0" * 64, [weight] * 1000).write(run / "list")
    masking = {"strategy": dict.fromkeys(strategies, 1.0), "selection": {"weights": str(run / "list")}}
    return config_of(run, phases=[{"name": "a", "steps": 4}, {"name": "b", "steps": 96, "masking": masking}])


@pytest.mark.parametrize("earlier", [False, True])
def test_the_list_and_the_order_of_a_begun_phase_may_not_change(tmp_path, data, capsys, earlier):
    """A checkpoint of an earlier version has no digest of the list, so that its order alone is compared."""
    folder, order = RunFolder(tmp_path / "run"), ("token", "span")
    folder.create()
    state = checkpoint_state(begun_in_phase(folder.path, 2.0, order), data, ResumeState(8, AT))
    if earlier:
        for name in ("masking.selection.weights (content)", "masking.strategy (order)"):
            del state["identity"][f"phases.b.{name}"]
    commit(folder.checkpoints, 8, state)
    assert find_start(begun_in_phase(folder.path, 2.0, order), folder, data).step == 8
    said = "wrote step-00000008, so phases.b.masking.selection.weights (content) may have changed since"
    assert (said in capsys.readouterr().err) is earlier
    with pytest.raises(UserError, match=r"phases.b.masking.strategy \(order\) was \['token', 'span'\] and is"):
        find_start(begun_in_phase(folder.path, 2.0, order[::-1]), folder, data)
    if not earlier:
        with pytest.raises(UserError, match=r"phases.b.masking.selection.weights \(content\) was \w+ and is \w+"):
            find_start(begun_in_phase(folder.path, 3.0, order), folder, data)


def test_the_objective_may_change_if_that_is_allowed(run, start, refusal):
    """The weights fit both: a model may be trained causally first, and by masks after that."""
    message = refusal(run, objective="clm")
    assert "objective was mlm and is clm; restore the setting" in message
    assert "shape" not in message
    assert start(run, objective="clm", allow_changes=True) == 8


def test_another_layout_is_taken_up_and_told(run, start, capsys):
    assert start(run) == 8
    assert capsys.readouterr().err == ""
    assert start(run, stage=3) == 8
    assert capsys.readouterr().err == "step-00000008 is resharded: zero.stage was 1 and is 3\n"


def test_a_run_can_be_longer_but_not_shorter_than_its_checkpoint(run, start, refusal):
    assert start(run, steps=8) == 8
    assert "is past train.steps (7)" in refusal(run, steps=7)


def test_the_stream_goes_on_where_it_stood_unless_its_rows_are_others(run, data):
    saved = checkpoint.read(run / "checkpoints/step-00000008")
    assert start_state(saved, config_of(run), data) == ResumeState(8, AT, 7)
    assert start_state(saved, config_of(run, rate=0.3), data) == ResumeState(8, AT, 7)
    next_epoch = ResumeState(8, beginning(2), 7)
    for change in ({"seq_len": 64}, {"packing": "concat"}, {"window_blocks": 3}):
        assert start_state(saved, config_of(run, data=change), data) == next_epoch
    assert start_state(saved, config_of(run, seed=3), data) == next_epoch
    for begin, state in ((7, next_epoch), (8, ResumeState(8, AT, 7))):
        later = {"name": "b", "steps": 100 - begin, "data": {"seq_len": 256}}
        phases = [{"name": "a", "steps": begin}, later]
        assert start_state(saved, config_of(run, phases=phases), data) == state
    two = Sources(("a", "b"), data.datasets * 2, ((1.0, 1.0),), (None, None))
    assert start_state(saved, config_of(run), two).position == beginning(2, 2)


def test_a_checkpoint_of_another_version_is_refused(run, refusal):
    """Before its position is read: another version writes other values there."""
    old = checkpoint.read(run / "checkpoints/step-00000008")
    state = old.state | {"identity": old.state["identity"] | {"plan version": 1}, "position": {"epoch": 1, "row": 3}}
    del state["replaced_tokens"]
    for step in (4, 8):
        checkpoint.Checkpoint(run / f"checkpoints/step-{step:08d}", step, state, old.files).write()
    for allow_changes in (False, True):
        message = refusal(run, allow_changes=allow_changes)
        assert "of another version of Maskwright (plan version was 1 and is 3); use that version" in message


def test_a_model_of_another_shape_is_refused_even_with_changes_allowed(run, data):
    config = config_of(run, allow_changes=True)
    longer = config.model_copy(update={"model": config.model.model_copy(update={"max_positions": 512})})
    with pytest.raises(UserError, match=r"of another shape of model: .*max_positions was 256 and is 512"):
        find_start(longer, RunFolder(run), data)
