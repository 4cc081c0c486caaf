"""Figures of benchmark pages: changes between layers, and right pairs by set."""

import contextlib
import importlib
import json
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from experiments import babylm, learning_rate_transfer, loss_and_compute, small_models
from experiments.babylm import Results, watch
from experiments.babylm_text import FILES, count, select
from experiments.common import read_text_lines
from experiments.layers.by_objective import OBJECTIVES, changes, marked, p_value
from experiments.small_models import CONFIG, config_of
from experiments.starting_points import measured
from experiments.translation import translate
from experiments.word_order import by_set
from pretrain.config import Config
from pretrain.run import Entry
from tests.support.finetuning import tiny_model


def test_the_models_are_valid_runs_which_differ_in_the_objective_alone():
    runs = {name: Config.model_validate(config_of(name, own)) for name, own in OBJECTIVES.items()}
    assert [run.objective for run in runs.values()] == ["mlm", "clm", "prefix"]
    assert len({(run.train.model_dump_json(), run.model.model_dump_json()) for run in runs.values()}) == 1
    assert "masking" in CONFIG
    assert "masking" not in config_of("clm", OBJECTIVES["clm"])


def test_babylm_chooses_whole_documents_within_the_words(tmp_path):
    """By a rule that the order of the input does not change, and no document twice."""
    texts = [" ".join([f"word{n}"] * (n % 7 + 1)) for n in range(200)]
    chosen = {}
    for name, order in (("a", texts), ("b", [*reversed(texts), *texts])):
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps({"text": text}) + "\n" for text in order)
        (tmp_path / f"{name}.jsonl").write_text(lines)
        select(str(tmp_path / f"{name}.jsonl"), tmp_path / name, {"train": 300, "valid": 50}, seed=0, level=3)
        chosen[name] = {part: set(read_text_lines(tmp_path / name / file)) for part, file in FILES.items()}
    assert chosen["a"] == chosen["b"]
    assert not chosen["a"]["train"] & chosen["a"]["valid"]
    counts = count(tmp_path / "b")
    assert (counts["train"]["words"], counts["valid"]["words"]) == (300, 50)
    assert counts["train"]["documents"] == len(chosen["b"]["train"])


@pytest.mark.parametrize(
    ("rate", "left", "stopped"), [(5e5, 300, []), (4e5, 300, [2]), (2e5, 300, [1, 2]), (5e5, 80, [0, 1, 2])]
)
def test_babylm_stops_runs_that_the_time_does_not_allow(rate, left, stopped, tmp_path):
    """After the probe by the rate of three runs together, and all of them before the time of evaluation."""
    args = Namespace(work=tmp_path, out=tmp_path / "page.md", gpu=True, quick=False, seeds=3, masked_limit=400)
    args.end, args.probe_steps = time.time() + left, 60
    for seed in range(3):
        (tmp_path / f"runs/{seed}").mkdir(parents=True)
        lines = [Entry(step, 1.0, {"speed/tokens_per_second": rate}).to_line() for step in range(60)]
        (tmp_path / f"runs/{seed}/journal.jsonl").write_bytes(b"".join(lines))
    over, results = threading.Event(), Results(args)
    watching = threading.Thread(target=watch, args=(args, results, over))
    watching.start()
    watching.join(2)
    over.set()
    watching.join()
    assert [seed for seed in range(3) if (tmp_path / f"runs/{seed}/STOP").exists()] == stopped
    assert left < 90 or results.of("probe") == {"tokens_per_second": 3 * rate, "seeds": 3 - len(stopped)}
    assert left < 90 or "No model is trained yet." in args.out.read_text()


def test_babylm_trains_no_seed_again_that_the_probe_has_stopped(tmp_path, monkeypatch):
    """Also if the first command was killed before the seed stopped. Without a decision, all seeds are trained."""
    args = Namespace(work=tmp_path, out=tmp_path / "page.md", gpu=True, quick=False, seeds=3, masked_limit=400)
    args.at_once, args.end, trained = 1, float("inf"), list[int]()
    monkeypatch.setattr(babylm, "train_one", lambda args, results, seed: trained.append(seed))
    babylm.train(args, Results(args))
    Results(args).add("probe", "tokens_per_second", 9e5)
    babylm.train(args, Results(args))
    Results(args).add("probe", "seeds", 2)
    babylm.train(args, Results(args))
    assert trained == [0, 1, 2] * 2 + [0, 1]


def test_babylm_evaluates_the_other_seeds_of_a_failed_one(tmp_path, monkeypatch):
    """Seed 1 fails: those after it are trained, all of them are evaluated, and the error of the seed ends the run."""

    def train_one(args, results, seed):
        if seed == 1:
            raise UserError("seed 1 failed")
        counts = dict.fromkeys(("steps", "of", "tokens", "minutes"), 1)
        results.add("runs", str(seed), {"complete": True, "model": "m", "machine": "cpu", **counts})

    args = Namespace(work=tmp_path, out=tmp_path / "page.md", gpu=False, quick=False, seeds=3, masked_limit=50)
    args.at_once, args.select_only, args.end = 1, False, float("inf")
    evaluated: list[str] = []
    monkeypatch.setattr(babylm, "arguments", lambda: args)
    monkeypatch.setattr(babylm, "train_one", train_one)
    monkeypatch.setattr(babylm, "evaluate_one", lambda args, results, name: evaluated.append(name))
    for stage in ("select", "prepare"):
        monkeypatch.setattr(babylm, stage, lambda args, results: None)
    with pytest.raises(UserError, match="seed 1 failed"):
        babylm.main()
    assert {name.split()[0] for name in evaluated} == {"0", "2", "unigram"}


def test_babylm_limits_minutes_on_a_gpu_alone(tmp_path, monkeypatch):
    words = ["babylm", "--minutes", "5", "--work", str(tmp_path), "--pairs", __file__]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(UserError, match="--minutes needs --gpu"):
        babylm.arguments()
    monkeypatch.setattr(sys, "argv", [*words, "--gpu"])
    assert babylm.arguments().minutes == 5


def test_a_prediction_is_not_used_for_other_settings(tmp_path):
    settings = {"vocab_size": 300, "widths": [16, 32], "large": 64, "tokens_per_weight": 3.0, "lr": 4e-3, "seeds": 1}
    args = Namespace(work=tmp_path, input=tmp_path / "a.jsonl", quick=True, **settings)
    results = loss_and_compute.stored(args)
    (tmp_path / "prediction.json").write_text(json.dumps(results | {"prediction": {"loss": 3.0}}))
    assert loss_and_compute.stored(args)["prediction"] == {"loss": 3.0}
    changed = {"input": tmp_path / "b.jsonl", "widths": [16, 48], "large": 96, "lr": 1e-3, "tokens_per_weight": 2.0}
    for name, value in (changed | {"quick": False, "seeds": 2, "vocab_size": 400}).items():
        with pytest.raises(UserError, match="another --work"):
            loss_and_compute.stored(Namespace(**vars(args) | {name: value}))


def test_a_run_of_a_sweep_without_a_finite_loss_is_named(tmp_path, monkeypatch):
    """A report leaves its loss out. The experiments would fail on that, or take the mean of the other seeds."""
    report: dict[str, dict] = {"arms": {"lr=0.1": {}, "lr=1": {}}, "values": {"seconds": {}}}
    (tmp_path / "runs/a").mkdir(parents=True)
    monkeypatch.setattr(small_models, "maskwright", lambda *words: None)
    args = Namespace(work=tmp_path, seeds=2, procs=1)
    losses = {"lr=0.1": {"1": 3.0, "2": 3.1}, "lr=1": {"1": 9.0}}
    for known, named in (({}, "lr=0.1/seed-1"), ({"held_out": losses}, "lr=1/seed-2")):
        (tmp_path / "runs/a/report.json").write_text(json.dumps(report | {"values": report["values"] | known}))
        with pytest.raises(UserError, match=rf"runs/a/runs/{named}: the held-out loss is not finite\."):
            small_models.sweep(args, "a", {}, "optim.lr=0.1,1")
    losses["lr=1"]["2"] = 9.1
    (tmp_path / "runs/a/report.json").write_text(json.dumps(report | {"values": {"held_out": losses}}))
    assert small_models.sweep(args, "a", {}, "optim.lr=0.1,1")["values"]["held_out"] == losses


def test_the_page_of_rates_has_intervals_and_marks_the_edge_of_the_grid():
    """Width 64 is best at 0.002, width 128 at the highest rate. Width 192 has a coordinate check alone."""
    losses = {64: (4.0, 3.0, 3.5), 128: (4.0, 3.0, 2.9)}
    noise = {"0": 0.0, "1": 0.01, "2": 0.02}
    coordinates = {"64": [0.1, 0.2], "128": [0.1, 0.2], "192": [0.1, 0.3]}
    results: dict[str, dict] = {"coordinates-muon": coordinates, "muon": {}}
    for width, of in losses.items():
        results["muon"][str(width)] = {
            str(rate): {seed: loss + extra * (rate == 0.004) for seed, extra in noise.items()}
            for rate, loss in zip((0.001, 0.002, 0.004), of, strict=True)
        }
    args = Namespace(optimizers=["muon"], widths=[64, 128, 192], rates=3, vocab_size=300, steps=4, seeds=3)
    args.out = Path("page.md")
    text = learning_rate_transfer.page(args, results)
    assert "| 64 | 0.002 | 3.0000 | 0 |" in text
    assert "| 128 | 0.004 (edge) | 2.9100 | +0.0900 (+0.0652 to +0.1148) |" in text
    assert "| 192 | not swept |  |  | 0.1000 | 0.3000 |" in text


def change(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def test_a_change_is_marked_only_if_it_is_significant_among_all_layers():
    """By Student's p-value of the interval of a jackknife."""
    assert p_value(change(2.0, 2.0)) == p_value(change(-2.0, 2.0)) == pytest.approx(0.05)
    assert p_value(change(4.0, 2.0)) < 0.004
    assert p_value(change(0.0, 0.0)) == 1
    assert marked([change(2.1, 2.0)], 0) == "+2.100 ± 2.000*"
    assert marked([change(2.1, 2.0), change(0, 1)], 0) == "+2.100 ± 2.000"
    assert marked([change(-6.0, 2.0), change(0, 1)], 0) == "-6.000 ± 2.000*"


def test_what_is_lost_and_regained_is_read_at_the_lowest_inner_layer():
    seen = {
        "of": "seen",
        "kind": "unmasked",
        "at": [{}] * 4,
        "since_first": [change(0, 0), change(-0.1, 0.01), change(-0.2, 0.01), change(-0.5, 0.01)],
        "until_last": [change(-0.5, 0.01), change(-0.4, 0.01), change(-0.3, 0.01), change(0, 0)],
    }
    row = changes({"models/m": {"natural": {"information": [seen, seen | {"of": "target"}]}}}).split("\n")[-1]
    assert row == "| m | natural | unmasked | 2 | -0.200 ± 0.010* | -0.300 ± 0.010* |"


def test_pages_that_share_a_folder_measure_their_own_models(tmp_path, monkeypatch):
    def evaluate(args, *words):
        models = {word: {} for word in words if str(word).startswith("models/")}
        (tmp_path / words[-1]).write_text(json.dumps({"models": models | {"unigram": {}}}))

    monkeypatch.setattr(small_models, "maskwright", evaluate)
    args = Namespace(work=tmp_path, pairs="blimp.jsonl", pairs_limit=4)
    for names in (["natural", "1-grams"], ["natural", "rare"]):
        small_models.evaluate_pairs(args, names)
        found = json.loads((tmp_path / "evaluation.json").read_text())["models"]
        assert [*found] == [*(f"models/{name}" for name in names), "unigram"]
    monkeypatch.setattr(small_models, "maskwright", None)
    small_models.evaluate_pairs(args, names)


OPTIONS = {
    "word2vec": ["model", "--data", "data", "--similarity", "*.txt"],
    "word_order": ["--input", "a.jsonl", "--pairs", "sst2.tsv"],
}


@pytest.mark.parametrize(("name", "option", "value", "kept"), [
    ("word2vec", "--size", "64", "size 192"), ("word2vec", "--epochs-of-vectors", "2", "epochs_of_vectors 5"),
    ("word2vec", "--min-count", "1", "min_count 5"), ("word2vec", "--data", "other", r"data .*/data"),
    ("word2vec", "--held-out", "50", "held_out 1000"), ("word_order", "--held-out", "50", "held_out 1000"),
    ("word_order", "--pairs-limit", "9", "pairs_limit 50"),
])  # fmt: skip
def test_vectors_and_the_search_are_not_used_for_other_settings(tmp_path, monkeypatch, name, option, value, kept):
    """With one learning rate there is no search."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sst2.tsv").write_text("sentence\tlabel\n")
    module = importlib.import_module(f"experiments.{name}")
    words = [name, *OPTIONS[name], "--train", "sst2.tsv", "--valid", "sst2.tsv", "--work", "work"]
    monkeypatch.setattr(module, "prepare", None, raising=False)  # of word_order, whose main reads the options
    read = getattr(module, "arguments", module.main)

    def start(*more):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        with contextlib.suppress(TypeError):
            read()

    start("--lr", "1e-3", "--held-out", "7")
    start()
    start("--seeds", "9")
    with pytest.raises(UserError, match=rf"work has results of {kept}\. Name another --work\.$"):
        start(option, value)


class Words:
    """A writer and a spelling that write the words of a prompt in capitals, at most `length`."""

    def tokenizer(self, text, add_special_tokens):
        return {"input_ids": text.split()}

    def write(self, request):
        assert request.length > 0
        words = request.prompt.upper().split()[: request.length]
        yield words, [True] * len(words)

    def text(self, ids):
        return " ".join(ids)


@pytest.mark.parametrize(("size", "written"), [(3, 3), (100, 26), (125, 1), (126, 0), (200, 0)])
def test_a_source_that_fills_a_row_has_an_empty_translation(size, written):
    assert translate(Words(), Words(), "a " * size).split() == ["A"] * written


def test_unknown_tokens_are_counted_by_the_token_of_the_model(tmp_path):
    folder = tiny_model(tmp_path / "model")
    args = Namespace(work=tmp_path, valid=tmp_path / "valid.txt")
    args.valid.write_text("the old ship\nthe zebra\n")
    assert measured(args, folder)["unknown"] == 1
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace("[UNK]", "<unk>"))
    assert measured(args, folder.rename(tmp_path / "other"))["unknown"] == 1


def test_right_pairs_are_counted_by_set():
    figures = (("UID:b", 0.25, 4), ("UID:a", 0.5, 3), ("field:x", 1.0, 7))
    right, pairs = by_set({"by": {name: {"accuracy": share, "pairs": n} for name, share, n in figures}})
    assert right.tolist() == [1.5, 1.0]
    assert pairs.tolist() == [3, 4]
