"""`maskwright evaluate --suite`: choice of settings, seeds, tasks that start from others, resume, and mistakes."""

import itertools
import json
import re
import shutil

import pytest
import yaml
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, MambaConfig, ViTConfig

from data_prep.common.errors import UserError
from evaluation.finetuning import Finetuning, experiment, read_suite
from evaluation.finetuning.head_training import Diverged
from evaluation.finetuning.result_file import Epoch, SeedResult
from evaluation.finetuning.suite import is_above
from pretrain.export import model_digest
from tests.support.finetuning import tiny_model, tracked_params
from tests.support.forked import ROOT
from tests.support.in_process import invoke
from tests.support.runs import write_config

WORDS = {"good": 1, "bad": 0, "old": 2}
TWO = {"train": "two.tsv", "valid": "two.tsv", "lr": [1e-3]}
SUITE = {
    "defaults": {"task": "classification", "lr": [1e-4, 1e-2], "epochs": [3], "seeds": 2, "batch_size": 4},
    "tasks": {
        "three": {"train": "three.tsv", "valid": "three.tsv", "limit_valid": 12},
        "two": TWO | {"start": "three", "metric": "f1", "epochs": [1, 2]},
        "scores": TWO | {"task": "regression"},
    },
}


MAMBA = {"vocab_size": 19, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}


def set_in(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, and sentences whose last word decides their label."""
    tiny_model(tmp_path / "model")
    for name, words in (("three", ["good", "bad", "old"]), ("two", ["good", "bad"])):
        rows = [f"{'the ship ' * (n % 5)}{word}\t{WORDS[word]}\n" for n in range(16) for word in words]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    write_suite(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return tmp_path


def evaluate(*more, code=0):
    return invoke("evaluate", "model", "--suite", "suite.yaml", "--json", "out.json", *more, code=code)


def test_settings_are_chosen_seeds_are_trained_and_a_killed_suite_resumes(folder, monkeypatch):
    """After a kill in the second task, the same command trains only what is missing. The results are the same."""
    trained, run_seed, stop_at = [], Finetuning.run_seed, 11

    def counted(self, seed, on_progress):
        trained.append((self.settings.init, self.settings.lr, self.settings.epochs, seed))
        if len(trained) == stop_at:
            raise KeyboardInterrupt
        return run_seed(self, seed, on_progress)

    monkeypatch.setattr(Finetuning, "run_seed", counted)
    write_config(folder / "config.yaml", {"track": {"uri": (uri := f"sqlite:///{folder}/mlflow.db")}})
    assert "stopped; run the same command to resume" in evaluate("--uri", uri, code=130).stderr
    assert [*json.loads((folder / "out.json").read_text())["tasks"]] == ["three"]
    shown = evaluate("--uri", uri).stdout
    assert len(trained) == 2 * (4 + 4 + 2) + 1, "one training was broken off"
    chosen = [("random", lr, 3, 0) for lr in (1e-4, 1e-2)]
    assert trained[:4] == [*chosen, ("random", 1e-2, 3, 1), ("random", 1e-2, 3, 2)]
    assert {choice[1:3] for choice in trained[8:10]} == {(1e-3, 1), (1e-3, 2)}
    results = json.loads((folder / "out.json").read_text())["tasks"]
    assert [table["metric"] for table in results.values()] == ["accuracy", "f1", "spearman"]
    for name, table in results.items():
        for model, row in table["models"].items():
            best = max(row["search"], key=lambda choice: choice["score"], default=row)
            assert (row["lr"], row["epochs"]) == (best["lr"], best["epochs"])
            (of_model,) = folder.glob(f"out.json.tasks/{model.split()[0]}-*")
            kept = json.loads((of_model / f"{name}-{row['lr']:g}-{row['epochs']}.json").read_text())
            assert (kept["scores"], kept["by_seed"]) == (row["scores"], row["by_seed"])
            assert f"{row['mean']:.4f}" in shown
            if table["start"]:  # its head of three labels gave way to one of two
                start = results["three"]["models"][model]
                tuned = of_model / f"three-{start['lr']:g}-{start['epochs']}"
                assert kept["identity"]["model"] == model_digest(tuned)
    assert results["three"]["models"]["model"]["above_random"] in (True, False)
    assert results["three"]["baseline"]["name"] == "naive Bayes on token counts"
    rows = {f"{task}, {model}" for task in results for model in ("model", "random weights")}
    assert {name for name in tracked_params(folder / "mlflow.db") if "seed" not in name} == rows

    stop_at = 0
    next(folder.glob("out.json.tasks/random-*")).rename(folder / "before")  # the one that was broken off
    evaluate("--uri", "none")
    assert json.loads((folder / "out.json").read_text())["tasks"] == results


def without_training(self, seed, _):
    return SeedResult(seed, 0.1, [Epoch(0.0, {}, self.task.baseline)]), []


def write_suite(folder, **sections):
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE | sections, sort_keys=False))


def three(**task):
    return {"tasks": {"three": SUITE["tasks"]["three"] | task}}


def two(**change):
    return {"tasks": SUITE["tasks"] | {"two": SUITE["tasks"]["two"] | change}}


def test_a_resumed_suite_sends_what_mlflow_lacks_and_tells_no_query_of_a_url(folder, monkeypatch):
    monkeypatch.setattr(Finetuning, "run_seed", without_training)
    (folder / "three.tsv").rename(folder / "three.tsv?token=abc")
    write_suite(folder, **three(train=(url := f"file://{folder}/three.tsv?token=abc"), valid=url))
    evaluate("--uri", "none")
    monkeypatch.setattr(Finetuning, "run_seed", None)
    write_config(folder / "config.yaml", {"track": {"uri": (uri := f"sqlite:///{folder}/mlflow.db")}})
    evaluate("--uri", uri)
    table = json.loads((folder / "out.json").read_text())["tasks"]["three"]
    params = tracked_params(folder / "mlflow.db")["three, model"]
    assert params["model"] == "model"
    assert {files[name] for files in (table, params) for name in ("train", "valid")} == {f"file://{folder}/three.tsv"}


def test_rows_have_one_commit_and_names_of_their_own(folder, monkeypatch):
    """Also if a data set of the Hub changes during the suite, and models in two folders have one name."""
    for name in ("a", "b", "c"):
        shutil.copytree("model", f"{name}/model")
        config = json.loads((folder / name / "model/config.json").read_text())
        (folder / name / "model/config.json").write_text(json.dumps(config | {"hidden_act": "relu", "note": name}))
    commits = itertools.count()
    pinned = lambda path: path if "@" in path else shutil.copy(path, f"{path}@{next(commits)}")  # noqa: E731
    monkeypatch.setattr(experiment, "pinned", pinned)
    monkeypatch.setattr(Finetuning, "run_seed", without_training)
    write_suite(folder, **three())
    evaluate("a/model", "b/model", "c/model")
    assert next(commits) == 2, "train and valid were each pinned once"
    table = json.loads((folder / "out.json").read_text())["tasks"]["three"]
    assert (table["train"], table["valid"]) == ("three.tsv@0", "three.tsv@1")
    assert {*table["models"]} >= {"random weights", "random weights as b/model", "random weights as c/model"}


def test_rows_of_random_weights_are_shared_with_models_that_come_later(folder, monkeypatch):
    """Also of a call with fewer seeds, which counts no others."""
    monkeypatch.setattr(Finetuning, "run_seed", without_training)
    write_suite(folder, **three(seeds=3))
    evaluate()
    shutil.copytree("model", "newer")
    weights = load_file("newer/model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, "newer/model.safetensors", {"format": "pt"})
    write_suite(folder, **three(seeds=2))
    invoke("evaluate", "newer", "model", "--suite", "suite.yaml", "--json", "out.json")
    rows = json.loads((folder / "out.json").read_text())["tasks"]["three"]["models"]
    assert {name: len(row["scores"]) for name, row in rows.items()} == {"random weights": 2, "newer": 2, "model": 2}
    (folder / "three.tsv").write_text((folder / "three.tsv").read_text() + "the ship good\t1\n")
    with pytest.raises(UserError, match="another train; choose another --json, or remove this file"):
        evaluate()


def test_a_folder_of_results_may_be_moved_and_a_task_may_start_later(folder, monkeypatch):
    """A task that starts from another needs its model, so that the other must be trained again."""

    def saved(self, seed, on_progress):
        return without_training(self, seed, on_progress)[0], [BertForMaskedLM.from_pretrained(folder / "model")]

    monkeypatch.setattr(Finetuning, "run_seed", saved)
    evaluate()
    (folder / "moved").mkdir()
    (folder / "out.json.tasks").rename(folder / "moved/out.json.tasks")
    monkeypatch.setattr(Finetuning, "run_seed", None)
    invoke("evaluate", "model", "--suite", "suite.yaml", "--json", "moved/out.json")
    tasks = SUITE["tasks"] | {"late": TWO | {"start": "scores", "task": "regression"}}
    write_suite(folder, tasks=tasks)
    with pytest.raises(UserError, match=r"scores-0\.001-3 is gone, and .* has its seeds: remove that file"):
        invoke("evaluate", "model", "--suite", "suite.yaml", "--json", "moved/out.json")


def test_a_learning_rate_whose_loss_is_not_finite_is_not_chosen(folder, monkeypatch):
    def run_seed(self, seed, on_progress):
        if self.settings.lr >= 1e-2:
            raise Diverged("the loss is not finite")
        return without_training(self, seed, on_progress)

    monkeypatch.setattr(Finetuning, "run_seed", run_seed)
    write_suite(folder, **three())
    assert "learning rate 0.01 is left out: the loss is not finite" in evaluate().stderr
    assert json.loads((folder / "out.json").read_text())["tasks"]["three"]["models"]["model"]["lr"] == 1e-4
    (folder / "suite.yaml").write_text((folder / "suite.yaml").read_text().replace("0.0001", "0.1"))
    said = "^tasks.three, random weights: the loss of every choice is not finite. Lower lr in the suite.$"
    with pytest.raises(UserError, match=said):
        evaluate()


@pytest.mark.parametrize("change, said", [
    (two(trian="a.tsv"), "Unknown key tasks.two.trian. Did you mean tasks.two.train?"),
    (two(train=None), "tasks.two.train must be text, but it is empty"),
    (two(lr=[0]), "tasks.two.lr.0 must be more than 0, not 0"),
    (two(lr=1e-3), r"tasks.two.lr must be a list, not 0.001. Write it in brackets: \[0.001\]."),
    (two(task="regresion"), "tasks.two.task must be .* Did you mean regression?"),
    (two(start="scores"), r"tasks.two.start must be a task above it \(three\), not 'scores'"),
    (two(metric="f2"), "tasks.two: metric is 'f2'; the metrics of this task are accuracy, f1, matthews."),
    (two(valid="none.tsv"), "tasks.two: No file none.tsv"),
    (two(columns="a,b"), "tasks.two: two.tsv, line 1 has no column 'a'"),
    (two(limit=3), "tasks.two: two.tsv: 3 examples are too few to choose settings with"),
    (two(task="repair"), "tasks.two.start cannot join a repair task, which has two models"),
    ({"defaults": [{"lr": [1e-4]}]}, "defaults must be a section of keys, not a list"),
    ({"defaults": {"lr": [0]}}, "defaults.lr.0 must be more than 0, not 0"),
    ({"defaults": {"sedes": 2}}, "Unknown key defaults.sedes. Did you mean defaults.seeds?"),
])  # fmt: skip
def test_a_mistake_in_a_suite_is_one_message_before_any_training(folder, monkeypatch, change, said):
    monkeypatch.setattr(Finetuning, "run_seed", None)
    write_suite(folder, **change)
    with pytest.raises(UserError, match=f"^suite.yaml: {said}"):
        evaluate()


@pytest.mark.parametrize("change, said", [
    (lambda model: set_in(model / "tokenizer_config.json", pad_token=None), "the tokenizer has no pad token"),
    (lambda model: MambaConfig(**MAMBA).save_pretrained(model), "dropout is set, but a mamba model has none"),
    (lambda model: ViTConfig().save_pretrained(model), "no model for AutoModelForSequenceClassification"),
    (lambda model: set_in(model / "config.json", vocab_size=9), "lacks weights that BertForSequence.* needs"),
])  # fmt: skip
def test_every_model_is_opened_for_every_task_before_any_training(folder, monkeypatch, change, said):
    """Also those after the first, which would be found at their own rows, after hours."""
    monkeypatch.setattr(Finetuning, "run_seed", None)
    write_suite(folder, **three(dropout=0.1))
    change(folder / shutil.copytree("model", "other"))
    with pytest.raises(UserError, match=rf"^suite\.yaml: tasks\.three, other: .*{said}"):
        invoke("evaluate", "model", "other", "--suite", "suite.yaml", "--json", "out.json")


def test_options_that_a_suite_does_not_read_are_refused(folder):
    with pytest.raises(UserError, match=r"--data is not used with --suite\. Remove --data, or --suite"):
        evaluate("--data", "a")
    with pytest.raises(UserError, match=r"add --json FILE"):
        invoke("evaluate", "model", "--suite", "suite.yaml")


def test_cut_texts_are_counted_and_a_model_without_a_tokenizer_is_refused(folder, monkeypatch):
    monkeypatch.setattr(Finetuning, "run_seed", without_training)
    write_suite(folder, **three(max_length=8))
    said = evaluate().stderr
    for row in ("random weights", "model"):
        assert re.search(rf"three, {row}: \d+ of 60 examples are longer than 8 tokens, and are cut", said)
    (folder / "model/tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"model holds no tokenizer\.json; export the run again"):
        evaluate()


@pytest.mark.parametrize("name", ["glue-like", "glue"])
def test_shipped_suites_are_read(name):
    suite = read_suite(ROOT / "configs/suites" / f"{name}.yaml")
    assert {"sst2", "cola", "mrpc"} <= suite.tasks.keys()


def row(*scores, interval=None):
    return {"scores": scores, "mean": sum(scores) / len(scores), "interval": interval}


@pytest.mark.parametrize("of_model, random, above", [
    (row(0.8, 0.9, interval=(0.7, 1.0)), row(0.6, 0.68, interval=(0.5, 0.69)), True),
    (row(0.8, 0.9, interval=(0.7, 1.0)), row(0.6, 0.8, interval=(0.5, 0.8)), False),
    (row(0.6, 0.5, interval=(0.4, 0.5)), row(0.8, 0.9, interval=(0.7, 1.0)), False),
    (row(0.1, 0.2, interval=(0.05, 0.25)), row(0.0, 0.0), True),
    (row(0.1), row(0.0, 0.0), None),
])  # fmt: skip
def test_a_row_is_above_random_weights_if_the_intervals_are_apart(of_model, random, above):
    assert is_above(of_model, random) is above
