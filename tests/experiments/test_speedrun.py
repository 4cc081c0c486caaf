"""The speedrun: its search, recipes, measure and times, and the whole of it with --quick, interrupted once."""

import json
import math
import sys
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import harness, speedrun, train_vs_hf
from benchmarks.harness import BOOKS
from benchmarks.speedrun_held_out import Passage, bits_per_byte, nats, passages_of, unigram_nats
from benchmarks.speedrun_page import Comparison, page, ratio
from benchmarks.speedrun_recipes import IDEAS, OURS, SEQ_LEN, Setting, best_of, nested, search, values_of
from benchmarks.speedrun_runs import Bench, Point, Result, easiest, training_times
from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.run import Entry
from tests.support.forked import ROOT, run_forked


def result(*bits: float) -> Result:
    """A point every 1,000 slots and 10 seconds."""
    return Result("r", 0, tuple(Point(1000 * n, 10 * n, value) for n, value in enumerate(bits, 1)), "")


def test_a_target_is_reached_between_points():
    assert result(8, 7, 6).reaches(6.5) == Point(2500, 25, 6.5)
    assert result(8, 7, 6).reaches(7) == Point(2000, 20, 7)
    assert result(8, 7).reaches(9) == Point(1000, 10, 8)  # before the first point nothing is known
    assert result(8, 6, 7, 6).reaches(6.5) == Point(1750, 17.5, 6.5)  # the first time
    assert result(8, 7).reaches(6.9) is None
    nan = math.nan
    assert result(8, nan, nan).reaches(7) is None  # diverged
    assert result(nan, 6).reaches(7) == Point(2000, 20, 6)


@pytest.mark.parametrize(
    ("best", "runs"),
    [(Setting(), 6), (Setting("modernbert", 8, 0.3, 8e-3), 9), (Setting("modernbert", 32, 0.3, 1.25e-4), 10)],
    ids=str,
)
def test_the_search_finds_the_best_setting_and_follows_the_rate(best, runs):
    def measure(setting: Setting) -> float:
        tried.append(setting)
        wrong = (setting.arch != best.arch) + (setting.batch != best.batch) + (setting.mask_rate != best.mask_rate)
        return wrong + 0.1 * abs(math.log2(setting.lr / best.lr))

    tried: list[Setting] = []
    assert best_of(search(measure, 10)) == best
    assert len(tried) == len(set(tried)) == runs
    assert len(search(measure, 4)) == 4


@pytest.mark.parametrize(
    "ideas", [[], [*OURS], *([idea] for idea in IDEAS), *([*OURS, idea] for idea in IDEAS)], ids=str
)
def test_recipes_are_configs_of_the_length_that_was_asked_for(ideas):
    values = values_of(ideas, Setting(batch=8), 1_000_000) | {"run.dir": "x"}
    config = Config.model_validate(nested(values))
    ends = [*(stage.after_step for stage in config.stages[1:]), config.train.steps]
    lengths = [end - stage.after_step for stage, end in zip(config.stages, ends, strict=True)]
    slots = sum(n * s.global_batch_size * s.seq_len for n, s in zip(lengths, config.stages, strict=True))
    assert slots == pytest.approx(1_000_000, rel=0.01)
    assert config.stages[-1].seq_len == SEQ_LEN
    assert 0 < config.schedule.warmup_steps < config.train.steps
    assert config.optim.lr == pytest.approx(1e-3 * math.prod(IDEAS[idea].lr for idea in ideas))
    assert (values == values_of([], Setting(batch=8), 1_000_000) | {"run.dir": "x"}) == (ideas in ([], ["BERT's form"]))


class Tokenizer:
    """A token for each `size` characters of a word, the first with the space before it. Ids are its last letters."""

    mask_token_id, cls_token_id, sep_token_id, pad_token_id = 0, 1, 2, 3

    def __init__(self, size: int):
        self.size = size
        self.backend_tokenizer = self

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        offsets, start = [], 0
        for word in text.split(" "):
            ends = [*range(start + self.size, start + len(word), self.size), start + len(word)]
            offsets += [*zip([max(0, start - 1), *ends[:-1]], ends, strict=True)]
            start += len(word) + 1
        return SimpleNamespace(ids=[ord(text[last - 1]) for _, last in offsets], offsets=offsets)


PASSAGES = [Passage("das weiße Haus", [(4, 9)]), Passage("a few more words here", [(0, 1), (6, 10)])]
BYTES = 6 + 1 + 4


class Model:
    """From slot i, half of the probability is on the id of slot i + lag. Checks what it sees."""

    def __init__(self, size: int, lag: int, specials: int):
        self.config, self.size, self.specials = SimpleNamespace(prediction_lag=lag), size, specials
        self.masked = 0

    def __call__(self, input_ids, attention_mask):
        answers = []
        for passage, row, real in zip(PASSAGES, input_ids, attention_mask, strict=True):
            ids = torch.tensor(Tokenizer(self.size).encode(passage.text, False).ids)
            assert int(real.sum()) == len(ids) + self.specials
            inside = row[self.specials // 2 :][: len(ids)]
            assert all(seen in (0, known) for seen, known in zip(inside.tolist(), ids.tolist(), strict=True))
            self.masked += int((inside == 0).sum())
            logits = torch.full((len(row), 256), -1e9)
            lag = self.config.prediction_lag
            for place, label in enumerate(ids.tolist(), self.specials // 2):
                if place >= lag:
                    logits[place - lag, [label, (label + 1) % 256]] = 0.0
            answers.append(logits)
        return SimpleNamespace(logits=torch.stack(answers))


@pytest.mark.parametrize(("size", "tokens"), [(1, 10), (3, 5), (9, 3)])
@pytest.mark.parametrize(("lag", "bare"), [(0, False), (1, False), (0, True)])
def test_bits_are_of_all_tokens_of_the_words_by_the_words_bytes(size, tokens, lag, bare):
    """One bit for each masked token of the same words, whatever the tokenizer; bytes are UTF-8."""
    model = Model(size, lag, 0 if bare else 2)
    assert bits_per_byte(nats(model, Tokenizer(size), PASSAGES, bare), PASSAGES) == pytest.approx(tokens / BYTES)
    assert model.masked == tokens
    uniform = unigram_nats(np.full(256, -math.log(256)), Tokenizer(size), PASSAGES)
    assert bits_per_byte(uniform, PASSAGES) == pytest.approx(8 * tokens / BYTES)


def test_passages_are_the_same_for_each_tokenizer_and_leave_out_long_ones():
    texts = [" ".join(f"{text}w{word}" for word in range(200)) for text in range(5)]
    passages = passages_of(texts, [Tokenizer(3), Tokenizer(9)], 100, 1000)
    assert len(passages) == 15
    assert len(passages_of(texts, [Tokenizer(3)], 4, 1000)) == 4
    assert {len(passage.text.split()) for passage in passages} == {60}
    words = [passage.text[first:last] for passage in passages for first, last in passage.words]
    assert all(" " not in word and word.startswith(tuple("01234")) for word in words)
    assert 0.08 < len(words) / 900 < 0.22
    assert passages_of(texts, [Tokenizer(9), Tokenizer(1)], 100, 100) == []


class FakeBench:
    """Our recipe reaches the target of 2 bits from 700 steps of 4,096 slots on, and 60 for each seed."""

    def __init__(self):
        self.log: list[str] = []
        self.unigram = lambda: 3.0

    def maskwright(self, name, values, seed, shares=(1.0,)):
        self.log.append(f"{name} {seed}")
        slots = values["train.steps"] * values["train.global_batch_size"] * SEQ_LEN
        return result(1.0 if slots >= (700 + 60 * seed) * 4096 else 2.5 + abs(values["optim.lr"] - 1e-3))

    def trainer_steps(self, usual, model, minutes):
        return round(1000 * minutes)

    def trainer(self, usual, model, seed, steps):
        self.log.append(f"trainer {seed}")
        return result(2.0)


def test_sides_take_turns_and_ours_trains_longer_until_it_reaches_the_target():
    bench = FakeBench()
    args = Namespace(search_tokens=10**6, search_runs=3, seeds=3, minutes=1, share=0.6, tries=4)
    results = speedrun.compare(bench, args)
    ours = ["our recipe 0", "our recipe 1", "our recipe 2"]
    turns = ["trainer 0", "usual recipe 0", *ours[:2], "usual recipe 1", "trainer 1", "trainer 2", "usual recipe 2"]
    assert bench.log[3:] == [*turns, "our recipe 2", *ours, *ours]
    assert (results.usual, results.reached) == (Setting(), True)
    args.tries = 1
    assert not speedrun.compare(bench, args).reached


def test_each_idea_that_changes_a_recipe_is_added_alone_and_removed_alone():
    args = Namespace(search_tokens=10**6, quick=False, ideas=[])
    arms = speedrun.arms(Setting("modernbert"), args)
    ours, usual = ({change for of, change in arms if of == recipe} for recipe in ("ours", "usual"))
    added = {f"with {idea}" for idea in IDEAS if idea not in OURS}
    assert ours == {"", *added, *(f"without {idea}" for idea in OURS[1:])}
    assert usual == {"", *(f"with {idea}" for idea in IDEAS if idea != "ModernBERT's form")}
    assert arms["ours", "without Muon"]["optim.name"] == "adamw"
    args.ideas = ["Muon", "late decay"]
    muon = {("usual", "with Muon"), ("ours", "without Muon")}
    late = {("usual", "with late decay"), ("ours", "with late decay")}
    assert set(speedrun.arms(Setting("modernbert"), args)) == {("usual", ""), ("ours", ""), *muon, *late}


def test_slots_and_seconds_are_counted_from_the_start_of_the_first_step(tmp_path):
    metrics = {"train/loss": 1.0, "speed/step_seconds": 5.0}
    lines = [Entry(step, 100.0 + 7 * step, metrics, {"rows": 4 * step, "seq_len": 64}).to_line() for step in (1, 2)]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines))
    assert training_times(tmp_path / "journal.jsonl") == {1: (256, 5.0), 2: (768, 12.0)}


def test_figures_of_the_page():
    """Frequent words are easy. Ratios are geometric means, with intervals on logarithms."""
    assert easiest(["the the sea", "zygote quark", "the sea the", "quark fjord the"]) == [0, 2]
    assert ratio({0: 2.0, 1: 8.0}, {0: 1.0, 1: 1.0}).startswith("4.00 (")
    low, high = ratio({0: 2.0, 1: 2.2, 2: 2.42}, {0: 1.0, 1: 1.0, 2: 1.0})[6:-1].split(" to ")
    assert float(low) * float(high) == pytest.approx(2.2**2, rel=0.01)
    assert 1.7 < float(low) < 1.8


@pytest.mark.parametrize(
    ("ours", "alone", "together"),
    [([8, 5.5, 5], "2.50", "3.33"), ([8, 5.5], "not reached", "3.33"), ([8, 7], "not reached", "not reached")],
)
def test_each_ratio_compares_equal_losses(ours, alone, together):
    """Ours is at 6 after 18 seconds, and at 5 after 30. The usual recipe ends at 6 in the Trainer and at 5 here."""
    bench = Bench(*[None] * 2, {"layers": 4, "hidden": 192}, 8192, 2, "fp32")
    ends = (Point(1, 60, 6), Point(1, 75, 5))
    sides = [{seed: Result("r", seed, (point,), "") for seed in range(2)} for point in ends]
    text = page(Comparison(bench, 9.0, Setting(), {}, *sides, {seed: result(*ours) for seed in range(2)}))
    cells = [line.split("|") for line in text.split("\n") if "|" in line]
    rows = {name.split(":")[0].strip(): value.strip() for _, name, value, *_ in cells}
    assert (rows["recipe alone"], rows["together"]) == (alone, together)


def test_data_of_other_settings_are_refused(tmp_path):
    bench = Bench(tmp_path, tmp_path / "out.json", {}, 2000, 1, "fp32")
    (tmp_path / "passages.json").write_text("[]")
    with pytest.raises(UserError, match=r"unknown settings.*another --work"):
        bench.prepare(["a.jsonl"], 60, 16)
    settings = {"input": ["a.jsonl"], "documents": 60, "passages": 16, "vocabulary": 2000}
    (tmp_path / "prepared.json").write_text(json.dumps(settings))
    bench.prepare(["a.jsonl"], 60, 16)
    for inputs, documents in ((["b.jsonl"], 60), (["a.jsonl"], 61)):
        with pytest.raises(UserError, match=r"has data of .*another --work"):
            bench.prepare(inputs, documents, 16)


def test_tiny_models_have_a_folder_and_a_page_of_their_own(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["speedrun", "--input", "a.jsonl", "--quick"])
    args = speedrun.arguments()
    assert (args.work.name, args.out.parent) == ("speedrun-quick", args.work)


@pytest.mark.slow
def test_an_interrupted_speedrun_continues_with_its_results(tmp_path, monkeypatch):
    """All of it with --quick and --ideas; the fifth training is interrupted."""

    def forked(command, cwd, env):
        words = [str(word) for word in command[2:]]
        if words[1] == "train" or words[0] == "benchmarks.hf_trainer":
            trainings.append(cwd.name)
            if len(trainings) == 5:
                (cwd / "run").mkdir()
                raise KeyboardInterrupt
        done = run_forked(words, dict(env), cwd, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    trainings: list[str] = []
    for module in (harness, train_vs_hf):
        monkeypatch.setattr(module, "call", lambda command, cwd=tmp_path, env=None: forked(command, cwd, env or {}))
    page, work = tmp_path / "pages" / "page.md", tmp_path / "work"
    words = ["--input", str(BOOKS), "--quick", "--ideas", "--work", str(work), "--out", str(page)]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks/speedrun.py"), *words])
    with pytest.raises(KeyboardInterrupt):
        speedrun.main()
    assert len(json.loads(page.with_suffix(".json").read_text())) == 4
    assert not page.exists()
    speedrun.main()
    assert [name for name in trainings if trainings.count(name) > 1] == [trainings[4]] * 2
    assert len(json.loads(page.with_suffix(".json").read_text())) == len(set(trainings)) - 1  # the probe has no result
    assert str(work) not in page.with_suffix(".json").read_text()  # no path of this machine is published
    text = page.read_text()
    assert all(shown in text for shown in ("engine alone", "| usual with", "BPE of 2,000"))
    count = len(trainings)
    speedrun.main()
    assert len(trainings) == count
