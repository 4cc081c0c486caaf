"""Definition of a study: its runs, refused options, permitted changes at a resume, and the dry run of the command."""

import json
import re
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from data_prep.format import Dataset, WeightList
from evaluation.study import open_unchanged
from evaluation.study.study_arms import grid
from pretrain.config_files import load_config
from pretrain.masking import cached_weights
from tests.support.finetuning import tiny_tokenizer
from tests.support.in_process import invoke
from tests.support.slurm_jobs import program
from tests.support.study_runs import OVER, kept, run, study_of


@pytest.mark.parametrize("change,words", [
    ({"over": ["objective=mlm,clm"]}, "Some arms predict tokens from both sides"),
    ({"over": ["optim.lr=1e-3,-1"]}, "lr=-1: override optim.lr: optim.lr must be more than 0, not -1"),
    ({"over": ["model.size.hidden=32,33"]}, "hidden=33: override model.size.hidden: model.size: hidden (33)"),
    ({"over": ["optim.lrr=1"]}, "Did you mean optim.lr?"),
    ({"over": ["data.train=/nowhere,/none"]}, "train=nowhere: "),
    ({"over": ["model.size=tiny,{layers: 2, hidden: 128, heads: 2}"]}, "=tiny and size=2-128-2 are the same"),
    ("data.valid=null", "data.valid is not set"),
    ("checkpoint.remote=s3://b/r", "checkpoint.remote is the place of one run alone"),
    ("cluster.nodes=2", "each run of a study trains on one node"),
    ({"baseline": "s"}, "--baseline s is not one of the arms, which are strategy=token, strategy=span"),
    ({"pairs_limit": 3}, "--pairs-limit says how many of --pairs are taken"),
    ({"pairs": "/nowhere.jsonl"}, "--pairs /nowhere.jsonl cannot be read"),
    ("data.train=/nowhere", "/nowhere"),
])  # fmt: skip
def test_a_study_that_could_not_be_one_is_refused(config, change, words):
    with pytest.raises(UserError, match=re.escape(words)):
        study_of(config, change) if isinstance(change, str) else study_of(config, **change)


def test_another_study_in_the_folder_is_refused_and_more_seeds_are_not(config):
    kept(config, seeds=2)
    one_arm = {"over": ["masking.strategy=token"]}
    for changes, options, words in (
        (["optim.lr=1e-3"], {}, "optim.lr was 0.0005 and is 0.001"),
        (["train.steps=41"], {}, "train.steps was 40 and is 41"),
        ([], one_arm, "arms was ['strategy=token', 'strategy=span'] and is ['strategy=token']"),
        (["masking.replacement.per=token"], {}, "masking.replacement.per was unit and is token (and 1 more)"),
        ([], {"seeds": 1}, "a study of 2 seeds; seeds can be added, not taken away"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            kept(config, *changes, **options)
    study = kept(config, "track.experiment=other", seeds=3)
    assert study.seeds == 3
    assert load_config(study.folder / "config.yaml").track.experiment == "other"


def test_what_differs_is_said_without_secrets(config):
    kept(config, pairs="https://host/blimp.jsonl?signature=abc")
    with pytest.raises(UserError, match=r"pairs was https://host/blimp\.jsonl\?signature=\*\*\*") as caught:
        kept(config, pairs="https://host/blimp.jsonl?signature=abcd")
    assert "abc" not in str(caught.value)


def test_changed_data_are_another_study(config, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("one")
    folder = kept(config, pairs=str(pairs)).folder
    pairs.write_text("two")
    with pytest.raises(UserError, match=r"holds another study: contents\.--pairs was"):
        kept(config, pairs=str(pairs))
    for words in ([], ["--only", "2"]):
        with pytest.raises(UserError, match=r"has changed since the study started: contents\.--pairs was"):
            invoke("study", "run", *words, folder)
    assert not (folder / "runs").exists()
    pairs.write_text("one")
    assert open_unchanged(folder).pairs == str(pairs)
    pairs.rename(tmp_path / "other.jsonl")
    pairs.mkdir()
    (pairs / "a.jsonl").write_text("one")
    assert open_unchanged(folder).pairs == str(pairs), "of a folder, its files count"
    (pairs / "b.jsonl").write_text("two")
    with pytest.raises(UserError, match=r"contents\.--pairs was"):
        open_unchanged(folder)


def test_another_list_at_the_same_path_is_another_study(config, data, tmp_path):
    """Runs of one arm would have other masks. The list is of a later phase here."""

    def write(weight):
        cached_weights.cache_clear()
        tokenizer = Dataset(data / "train").manifest.tokenizer
        WeightList(tokenizer.sha256, [weight] * tokenizer.vocab_size).write(tmp_path / "list")

    write(1.0)
    masked = {"selection": {"weights": str(tmp_path / "list")}}
    phases = [{"name": "a", "steps": 20}, {"name": "b", "steps": 20, "masking": masked}]
    words = ("train.steps=40", f"phases={json.dumps(phases)}")
    folder = kept(config, *words).folder
    assert open_unchanged(folder).folder == folder
    write(2.0)
    with pytest.raises(UserError, match=r"study started: contents\.masking\.selection\.weights /.*/list was \w+"):
        open_unchanged(folder)
    with pytest.raises(UserError, match="holds another study: contents"):
        kept(config, *words, seeds=5)
    stored = json.loads((folder / "study.json").read_text())
    for arm in stored["arms"]:
        arm["config"]["contents"].pop(f"masking.selection.weights {tmp_path}/list")
    (folder / "study.json").write_text(json.dumps(stored))
    assert open_unchanged(folder).folder == folder, "an earlier version did not store it"


@pytest.mark.process
def test_queued_jobs_of_a_study_keep_their_config(config, tmp_path):
    """The same command is refused, and so are its other settings of tracking."""
    bin, queue = tmp_path / "bin", tmp_path / "queue"
    program(bin, "sbatch", "echo 12")
    program(bin, "squeue", f"cat {queue}")
    program(bin, "scontrol", "exit 1")
    words = ("study", "sweep", config, "--over", OVER[0], "--slurm", "--procs", 1, "cluster.cpu=true")
    queue.write_text("")
    assert "Submitted run as job 12" in invoke(*words, PATH=f"{bin}:/bin:/usr/bin").output
    own = load_config(config).run.dir / "config.yaml"
    before = own.read_text()
    queue.write_text("12\n")
    with pytest.raises(UserError, match=r"Jobs 12 12 of .* wait or run"):
        invoke(*words, "track.experiment=other", PATH=f"{bin}:/bin:/usr/bin")
    assert own.read_text() == before
    queue.write_text("")
    invoke(*words, "track.experiment=other", PATH=f"{bin}:/bin:/usr/bin")
    assert own.read_text() != before


def test_a_config_that_was_altered_since_is_not_gone_on_with(config, data):
    folder = kept(config, "optim.lr=0.002", "track.experiment=maskwright").folder
    own, true = folder / "config.yaml", (folder / "config.yaml").read_text()
    for part, other, words in (
        ("lr: 0.002", "lr: 0.1", r"optim.lr was 0.002 and is 0.1 \(and 1 more\); restore it"),
        (str(data / "valid"), str(data / "train"), r"data.valid was \S+valid and is \S+train \(and 1 more\); restore"),
        (str(data / "train"), str(data / "gone"), "gone"),
    ):
        assert part in true
        own.write_text(true.replace(part, other))
        with pytest.raises(UserError, match=words):
            invoke("study", "run", folder)
    own.write_text(true.replace("experiment: maskwright", "experiment: other"))
    assert own.read_text() != true
    assert open_unchanged(folder).baseline == "strategy=token"
    assert not (folder / "runs").exists()


def test_a_run_folder_is_no_study(config, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/status.json").write_text("{}")
    with pytest.raises(UserError, match="is the folder of a run"):
        kept(config)


def test_the_grid_names_each_arm_and_keeps_its_overrides():
    falls = "{schedule: linear, start: 0.3, end: 0.15}"
    arms = grid(["optim.lr=1e-3,3e-5", f"masking.rate=0.15,{falls}", "optim.betas=[0.9, 0.98]"])
    ends = ("rate=0.15,betas=0.9-0.98", "rate=linear-0.3-0.15,betas=0.9-0.98")
    assert [*arms] == [f"{lr},{end}" for lr in ("lr=0.001", "lr=3e-05") for end in ends]
    rate = {"schedule": "linear", "start": 0.3, "end": 0.15}
    wanted = {"optim.lr": 3e-5, "masking.rate": rate, "optim.betas": [0.9, 0.98]}
    assert arms["lr=3e-05,rate=linear-0.3-0.15,betas=0.9-0.98"] == wanted
    assert [*grid(["model.init=/a/../b c,null"])] == ["init=a-..-b-c", "init=null"]
    assert [*grid(["optim.lr=-1,true"])] == ["lr=-1", "lr=true"]
    assert [*grid(["data.train='s3://b/x?signature=abc'"])] == ["train=s3-b-x-signature"]
    assert [*grid(["optim.lr=1", "phases.end.optim.lr=2"])] == ["optim.lr=1,phases.end.optim.lr=2"]


@pytest.mark.parametrize("over,words", [
    (["optim.lr"], "--over optim.lr: write a key of the config and its values, as in optim.lr=1e-3,3e-3"),
    (["optim.lr="], "write a key of the config"),
    (["optim.lr=1,[2"], "values 'optim.lr=1,[2': line 1 is not valid YAML"),
    (["optim.lr=1,1.0"], "--over optim.lr: give each of its values once"),
    (["optim.lr=1", "optim.lr=2"], "--over optim.lr: give each key once"),
    (["model.size.hidden=8", "model.size=tiny"], "--over model.size: give each key once, and no key inside"),
    (["model.size=tiny", "model.size.hidden=8"], "model.size.hidden: give each key once, and no key inside"),
    (["model.init=a b,a-b"], "init=a-b would name two arms"),
    ([f"optim.lr=1{400 * '0'},1{401 * '0'}"], "would name two arms"),
    (["run.seed=1,2"], "--over run.seed: the study names and seeds the runs. Write --seeds N"),
    (["track.uri=none"], "--over track.uri: it does not change a model"),
    (["data={}"], "--over data: all arms are compared by one held-out data set"),
    (["eval.masks=own"], "--over eval.masks: all arms are measured in the same way"),
])  # fmt: skip
def test_what_is_no_arm_is_refused(over, words):
    with pytest.raises(UserError, match=re.escape(words)):
        grid(over)


def test_an_override_changes_what_is_derived_from_its_key(config):
    """As for `maskwright train`: the study's config holds no defaults of other values."""
    values = yaml.safe_load(config.read_text())
    values["train"] = {"tokens": 64 * 256, "global_batch_size": 8}
    values["model"] = {"size": "tiny"}
    config.write_text(yaml.safe_dump(values))
    study = kept(config, over=["train.global_batch_size=8,16", "model.arch=bert,modernbert"])
    assert [arm.steps for arm in study.arms] == [64, 64, 32, 32]
    sizes = [arm.config["model"]["size"]["layers"] for arm in study.arms[:2]]
    assert sizes == [2, 4], "presets of each form"
    assert study.about == "mlm, rows of 32 tokens"
    assert open_unchanged(study.folder) == study


def test_models_of_all_arms_are_evaluated_with_the_same_rows(config):
    assert study_of(config).seq_len is None
    assert study_of(config, over=["data.seq_len=64,16,256"]).seq_len == 16
    assert study_of(config, over=["data.seq_len=256,512"]).seq_len == 128
    mixture = "[{kind: mntp, share: 0.5}, {kind: clm, share: 0.5}]"
    assert study_of(config, over=[f"objective=mlm,{mixture}"]).losses, "all models fill masks"


def asked(config, *options: str):
    """The output of `study sweep` for a study of two arms at 9 steps."""
    words = ["--over", "masking.strategy=token,span", "train.steps=9", "--dry-run", *options]
    return invoke("study", "sweep", config, *words).output


def refusal(config, *options: str) -> str:
    with pytest.raises(UserError) as refused:
        asked(config, *options)
    return str(refused.value)


def test_a_dry_run_tells_arms_and_steps_writes_nothing_and_refuses_what_the_study_would(config, tmp_path):
    output = asked(config, "--seeds", "1")
    assert "  strategy=token  9 steps\n  strategy=span   9 steps\n2 runs" in output
    assert not (tmp_path / "study").exists()
    run(kept(config, "train.steps=9", seeds=2))
    assert "6 runs, 4 of them done" in asked(config, "--seeds", "3")
    assert "holds a study of 2 seeds" in refusal(config, "--seeds", "1")
    assert "holds another study" in refusal(config, "masking.rate=0.3")
    assert "run.seed: a study numbers its seeds" in refusal(config, "run.seed=5")
    asked(config, "--stop-early")  # may begin or end at any time


TASK = "--task classification --train rows --valid rows"


@pytest.mark.parametrize("options,words", [
    (["--pairs", "rows"], "rows, line 1 is not JSON"),
    (["--pairs", "pairs"], None),
    (["--pairs", "long"], "long: a sentence has 42 tokens, and the model takes 32"),
    (["--pairs", "long", "--pairs-limit", "1"], None),
    (["--finetune", TASK], None),
    (["--finetune", "--task classification --train rows --valid pairs"], "has no column"),
    (["--finetune", f"{TASK} 'a"], "cannot be split into options (No closing quotation)"),
    (["--finetune", f"{TASK} --limt 3"], "--finetune: No such option: --limt (Possible options: "),
    (["--finetune", f"{TASK} --out=there"], "--finetune: --out is set by the study. Remove it from --finetune"),
    (["--finetune", f"{TASK} --columns text"], "--columns text is not TEXT,LABEL"),
    (["--finetune", f"{TASK} --lr 0"], "--lr must be more than 0 and finite, not 0."),
    (["--finetune", f"{TASK} --lr inf"], "--lr must be more than 0 and finite, not inf."),
    (["--finetune", f"{TASK} --dropout 1"], "--dropout must be 0 or more and less than 1, not 1."),
])  # fmt: skip
def test_what_models_are_evaluated_on_is_read_before_anything_is_trained(config, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    tiny_tokenizer(Path(yaml.safe_load(config.read_text())["data"]["train"]) / "tokenizer")
    Path("rows").write_text("text\tlabel\nthe old ship\tgood\nthe new ship\tbad\n")
    Path("pairs").write_text('{"sentence_good": "the ship is red", "sentence_bad": "ship the is red"}\n')
    long = f'{{"sentence_good": "the ship {"is red " * 19}", "sentence_bad": "ship", "UID": "a"}}\n'
    Path("long").write_text(Path("pairs").read_text().replace("}", ', "UID": "a"}') + long)
    assert words in refusal(config, *options) if words else asked(config, *options)
