"""Evaluation: masks, parts of the held-out loss, pairs, intervals, the unigram baseline."""

import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from evaluation.likelihood import EvaluationRequest, evaluate
from evaluation.likelihood.evaluate_models import LEAST, paired_bootstrap
from evaluation.likelihood.held_out_loss import HeldOut, HeldOutAnswers, Masks, held_out_results, unmasked
from evaluation.likelihood.minimal_pairs import MinimalPair, credits, limited, pair_results, read_pairs, units, wilson
from evaluation.likelihood.predictors import Stream, Unigram, open_model
from evaluation.likelihood.sentence_scores import sentence_scores
from pretrain.masking import Vocabulary
from tests.support.evaluated import save_model
from tests.support.hostile_json import DEEPEST
from tests.support.in_process import invoke
from tests.support.prep import rows_file

PAIRS = [
    {"sentence_good": "the captain saw the ship.", "sentence_bad": "captain the ship saw the.", "UID": "order"},
    {"sentence_good": "a sailor found a coin.", "sentence_bad": "a sailor found a the.", "UID": "noun"},
    {"sentence_good": "the king feared her.", "sentence_bad": "the king feared.", "UID": "\x1b[2Jlength"},
]


@pytest.fixture(scope="module")
def models(corpus, tmp_path_factory) -> list[Path]:
    """Two BERTs with the WordPiece tokenizer, and a RoBERTa with the other one."""
    into = tmp_path_factory.mktemp("models")
    berts = [save_model("bert", corpus["wordpiece"], into / f"bert-{seed}", seed) for seed in (0, 1)]
    return [*berts, save_model("roberta", corpus["bpe"], into / "roberta")]


@pytest.fixture
def pairs_file(tmp_path) -> Path:
    return rows_file(tmp_path, [pair | {"field": "syntax"} for pair in PAIRS], "jsonl")


def held_out(corpus: Path, rows: int = 1000, rate: float = 0.3) -> HeldOut:
    return HeldOut(Dataset(corpus / "data" / "valid"), Masks(rows, 32, rate))


def test_each_token_of_the_data_set_is_there_once_and_a_share_is_masked(corpus):
    batches = held_out(corpus["wordpiece"])
    dataset, special = batches.dataset, list(batches.vocabulary.special_ids)
    expected = Counter(np.concatenate([dataset.tokens(block) for block in range(dataset.n_blocks)]).tolist())
    streams = [Stream.of_batch(batch) for batch in batches]
    tokens = np.concatenate([unmasked(stream).tokens for stream in streams])
    assert Counter(tokens[~np.isin(tokens, special)].tolist()) == expected
    assert sum(len(stream.labels) for stream in streams) / sum(expected.values()) == pytest.approx(0.3, abs=0.02)


def test_masks_depend_on_data_and_rate_alone(corpus):
    def seen(**settings) -> np.ndarray:
        return np.concatenate([batch.tokens for batch in held_out(corpus["wordpiece"], **settings)])

    assert np.array_equal(seen(), seen())
    fewer = {tuple(row) for row in seen(rows=10).reshape(-1, 32).tolist()}  # rows read together are in another order
    assert len(fewer) == 10
    assert fewer < {tuple(row) for row in seen().reshape(-1, 32).tolist()}
    assert not np.array_equal(seen(), seen(rate=0.2))


def test_figures_of_the_held_out_loss():
    loss, right = np.array([1.0, 2.0, 3.0, 6.0]), np.array([True, False, False, True])
    measured = HeldOutAnswers(loss=loss, right=right, row=np.array([0, 0, 1, 3]))
    results = held_out_results(measured)
    assert (results["loss"], results["masked_accuracy"], results["predictions"], results["rows"]) == (3.0, 0.5, 4, 3)
    assert results["perplexity"] == pytest.approx(math.exp(3))
    assert measured.by_row().tolist() == [[3.0, 3.0, 6.0], [1.0, 0.0, 1.0], [2.0, 1.0, 1.0]]


def test_counts_and_the_unigram_baseline(corpus):
    dataset = Dataset(corpus["wordpiece"] / "data" / "train")
    counts, vocabulary = dataset.token_counts(), Vocabulary.of(dataset.manifest.tokenizer)
    tokens = np.concatenate([dataset.tokens(block) for block in range(dataset.n_blocks)])
    assert [counts[id] for id in (5, 30, 60)] == [(tokens == id).sum() for id in (5, 30, 60)]
    reports: list[tuple[int, int]] = []
    dataset.token_counts(progress=lambda done, of: reports.append((done, of)))
    assert reports == [(block + 1, dataset.n_blocks) for block in range(dataset.n_blocks)]

    folder = corpus["wordpiece"] / "tokenizer"
    unigram, n_ordinary = Unigram(dataset, counts), len(vocabulary.ordinary_ids)
    texts = ["the king saw the ship", "ship the saw king the", "ship"]
    scores = sentence_scores(unigram, texts)
    n_tokens = int((~np.isin(tokens, list(vocabulary.special_ids))).sum())
    ids = AutoTokenizer.from_pretrained(str(folder))(texts[0], add_special_tokens=False)["input_ids"]
    assert scores[0] == pytest.approx(sum(math.log((counts[id] + 1) / (n_tokens + n_ordinary)) for id in ids))
    assert scores[0] == scores[1] != scores[2]
    every = unigram.log_probabilities[vocabulary.ordinary_ids]
    assert np.exp(every).sum() == pytest.approx(1)


EWOK = {"Context1": "Ann is up.", "Context2": "Ann is down.", "Target1": "She is high.", "Target2": "She is low."}
TRACKED = {"input_prefix": "Box 1 has", "options": [" a coin.", " a ship.", " it."], "numops": 2}


def test_pairs_are_read_and_bad_lines_named(tmp_path, pairs_file):
    texts = ("a sailor found a coin.", "a sailor found a the.")
    assert read_pairs(str(pairs_file))[1] == MinimalPair(texts, {"field": "syntax", "UID": "noun"})
    for line, message in {
        '{"sentence_good": "a", "sentence_bad": " "}': "line 2 has no text as sentence_bad",
        json.dumps(PAIRS[0])[:-1] + f', "field": {DEEPEST}}}': "line 2 has no text or number as field",
        "[1]": "line 2 is not a JSON object",
        json.dumps(EWOK): "line 2 has no text as Domain",
        json.dumps(EWOK | {"Domain": "x", "Target2": 1}): "line 2 has no text as Target2",
        json.dumps(TRACKED | {"options": " ab"}): "line 2 has no list of two or more options",
        json.dumps(TRACKED | {"options": [" a", 5]}): "line 2 has no text as an option",
        json.dumps(TRACKED | {"numops": None}): "no number as numops",
    }.items():
        (tmp_path / "bad.jsonl").write_text(json.dumps(PAIRS[0]) + "\n" + line + "\n")
        with pytest.raises(UserError, match=message):
            read_pairs(str(tmp_path / "bad.jsonl"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no \.jsonl file"):
        read_pairs(str(tmp_path / "empty"))


def test_the_query_of_a_url_of_pairs_is_not_told(models, pairs_file):
    pairs_file.rename(f"{pairs_file}?code=abc")
    results = run(models=(str(models[0]),), pairs=f"file://{pairs_file}?code=abc")
    assert results["settings"] == {"pairs": {"file": f"file://{pairs_file}", "limit": None}}


def test_a_limit_takes_pairs_of_each_uid_evenly():
    pairs = [MinimalPair((str(n), ""), {"UID": "ab"[n % 2]}) for n in range(20)]
    assert [pair.texts[0] for pair in limited(pairs, 2)] == ["0", "1", "10", "11"]
    assert limited(pairs, 100) == pairs


def test_accuracy_by_group_with_ties_as_halves():
    pairs = [MinimalPair(("", ""), {"field": "f", "UID": uid}) for uid in "aabb"]
    credit = credits(pairs, np.array([-1.0, -2.0, -2.0, -1.0, -3.0, -3.0, -4.0, -5.0]))
    assert credit.tolist() == [1, 0, 0.5, 1]
    results = pair_results(pairs, credit)
    assert (results["accuracy"], results["pairs"], results["ties"]) == (0.625, 4, 1)
    by_group = {name: result["accuracy"] for name, result in results["by"].items()}
    assert by_group == {"field:f": 0.625, "UID:a": 0.5, "UID:b": 0.75}


def test_babylm_counts_a_tie_as_right_and_every_uid_alike():
    three, two = ("", "", ""), ("", "")
    pairs = [MinimalPair(two, {"UID": "a"})] * 3 + [MinimalPair(two, {"UID": "b"})]
    credit = credits(pairs, np.array([-1, -2, -1, -2, -2, -1, -3, -3.0]))
    assert credit.tolist() == [1, 1, 0, 0.5]
    assert pair_results(pairs, credit)["babylm"] == pytest.approx((2 / 3 + 1) / 2)
    names = [("regular", 0), ("regular", 1), ("ambiref", 0)]  # entity tracking: splits count alike
    choices = [MinimalPair(three, {"split": split, "UID": f"{split}_{n}_ops"}) for split, n in names]
    credit = credits(choices, np.array([-1, -2, -3, -2, -1, -3, -1, -1, -2.0]))
    assert credit.tolist() == [1, 0, 0.5]
    results = pair_results(choices, credit)
    assert (results["babylm"], results["ties"], results["by"]["split:regular"]["accuracy"]) == (0.75, 1, 0.5)


def test_other_tests_of_babylm_are_read_with_what_is_not_scored(tmp_path):
    (tmp_path / "social.jsonl").write_text(json.dumps(EWOK | {"Domain": "social"}))
    (tmp_path / "regular.jsonl").write_text(json.dumps(TRACKED))
    (tmp_path / "turns.jsonl").write_text(json.dumps({"sentence_good": "a", "sentence_bad": "b"}))
    tracked, ewok, supplement = read_pairs(str(tmp_path))
    assert ewok == MinimalPair(("Ann is up. She is high.", "Ann is up. She is low."), {"UID": "social"}, 10)
    groups = {"split": "regular", "UID": "regular_2_ops"}
    assert tracked == MinimalPair(("Box 1 has a coin.", "Box 1 has a ship.", "Box 1 has it."), groups, 9)
    assert supplement == MinimalPair(("a", "b"), {"UID": "turns"})


def run(**settings) -> dict:
    return evaluate(EvaluationRequest(**settings), lambda done, of, line: None)


def test_models_and_the_baseline_on_the_same_questions(corpus, models, pairs_file):
    first, second = str(models[0]), str(models[1])
    data = corpus["wordpiece"] / "data"
    both = {"data": str(data / "valid"), "counts": str(data / "train"), "pairs": str(pairs_file)}
    results = run(models=(first, second), **both)
    assert list(results["models"]) == [first, second, "unigram"]
    assert results["settings"]["held_out"]["seq_len"] == 40  # what the models take
    assert len({result["held_out"]["predictions"] for result in results["models"].values()}) == 1
    of_unigram = results["models"]["unigram"]["pairs"]  # finds the frequent "the", and the shorter sentence, likelier
    assert (of_unigram["ties"], of_unigram["accuracy"]) == (1, pytest.approx(0.5 / 3))
    alone = run(models=(second,), **both)
    assert alone["models"][second] == results["models"][second]
    for comparison in results["comparisons"]:
        part, figure = comparison["measure"].split(".")
        values = [results["models"][comparison[which]][part][figure] for which in ("model", "with")]
        assert comparison["difference"] == pytest.approx(values[0] - values[1])
        if part == "pairs":
            assert comparison["interval"] is None  # of three UIDs
        else:
            assert comparison["interval"][0] <= comparison["difference"] <= comparison["interval"][1]
    assert len(results["comparisons"]) == 6
    json.dumps(results)


def test_what_does_not_go_together_is_refused(corpus, models, tmp_path, monkeypatch):
    wordpiece, bpe = (str(corpus[kind] / "data" / "valid") for kind in ("wordpiece", "bpe"))
    with pytest.raises(UserError, match=r"roberta has another vocabulary than .*valid; prepare"):
        run(models=(str(models[0]), str(models[2])), data=wordpiece)
    with pytest.raises(UserError, match="was made with another tokenizer"):
        run(models=(str(models[0]),), data=wordpiece, counts=bpe)
    with pytest.raises(UserError, match="no token is predicted"):
        run(models=(str(models[0]),), data=wordpiece, rows=1, mask_rate=0.001)
    (tmp_path / "long.jsonl").write_text(json.dumps({"sentence_good": "the " * 50, "sentence_bad": "the"}))
    monkeypatch.setattr("evaluation.likelihood.evaluate_models.measure", None)  # it is seen before anything is measured
    with pytest.raises(UserError, match="bert-1: a sentence has 52 tokens"):
        run(models=tuple(map(str, models[1::-1])), data=wordpiece, pairs=str(tmp_path / "long.jsonl"))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_model_that_diverged_is_not_scored(kind, corpus, pairs_file, tmp_path):
    model = str(save_model(kind, corpus["wordpiece"], tmp_path / kind))
    weights = load_file(f"{model}/model.safetensors")
    name = next(name for name in weights if re.search(r"layer\.1\.(output\.dense|ffn\.lin2)\.weight", name))
    weights[name][0, 0] = math.inf
    save_file(weights, f"{model}/model.safetensors", {"format": "pt"})
    for asked in ({"pairs": str(pairs_file)}, {"data": str(corpus["wordpiece"] / "data" / "valid")}):
        with pytest.raises(UserError, match=f"{kind} gives log-probabilities that are not finite"):
            run(models=(model,), **asked)


def test_ids_that_a_model_does_not_know_are_refused(corpus, pairs_file, tmp_path):
    model = save_model("bert", corpus["wordpiece"], tmp_path / "model")
    AutoTokenizer.from_pretrained(str(corpus["bpe"] / "tokenizer")).save_pretrained(model)
    with pytest.raises(UserError, match=r"is asked about an id of \d+, and knows those below \d+; give it the tok"):
        run(models=(str(model),), pairs=str(pairs_file))


def test_pairs_of_models_with_other_tokenizers_compare(models, pairs_file):
    results = run(models=(str(models[0]), str(models[2])), pairs=str(pairs_file))
    assert {result["pairs"]["score"] for result in results["models"].values()} == {"pseudo-log-likelihood"}
    assert [result["measure"] for result in results["comparisons"]] == ["pairs.accuracy"]


def test_the_command_prints_tables_and_writes_json(corpus, models, pairs_file, tmp_path):
    data, out = corpus["wordpiece"] / "data", tmp_path / "found.json"
    words = ["--data", data / "valid", "--pairs", pairs_file, "--limit", "1", "--rows", "20", "--json", out]
    done = invoke("evaluate", *models[:2], *words)
    results = json.loads(out.read_text())["models"][str(models[0])]
    assert results["held_out"]["rows"] == 20
    assert results["pairs"]["pairs"] == 3
    assert f"{results['held_out']['loss']:.4f}" in done.stdout
    assert f"{results['pairs']['accuracy']:.2%}" in done.stdout
    assert "noun" in done.stdout
    assert done.stdout.count("too few") == 1  # three UIDs; of rows there are enough
    assert r"\x1b[2Jlength" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(("words", "message"), [
    (["m", "--pairs", "x", "--rows", "3"], "--rows is used only with --data"),
    (["m", "--pairs", "x", "--seq-len", "64"], "--seq-len is used only with --data"),
    (["m", "--pairs", "x", "--mask-rate", "0.15"], "--mask-rate is used only with --data"),
    (["m", "--data", "x", "--json", "."], ". is a folder. Name a file"),
    (["m", "--data", "x", "--json", "/dev/null/x.json"], "Cannot write to /dev/null/x.json: not a dir"),
    (["./unigram", "--unigram", "x", "--pairs", "x"], "unigram is also the name of the"),
])  # fmt: skip
def test_bad_words_are_one_sentence(words, message):
    with pytest.raises(UserError) as refused:
        invoke("evaluate", *words)
    assert message in str(refused.value)


def test_what_looks_like_a_special_token_in_a_sentence_is_text(corpus, models):
    for model, mask in ((models[0], "[MASK]"), (models[2], "<mask>")):
        tokenizer = open_model(model).tokenizer
        assert tokenizer.mask == tokenizer.vocabulary()[mask]
        assert tokenizer.mask not in tokenizer([f"the {mask} sailed"])[0].ids


def test_the_interval_of_a_share():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe, Statistics in Medicine 17, 1998
    assert wilson(0, 10)[0] == 0


@pytest.mark.parametrize("equal", [True, False])
def test_the_bootstrap_is_that_of_a_ratio(equal):
    n, chance = 1000, np.random.default_rng(0)
    weights = np.full(n, 2.0) if equal else chance.integers(1, 40, n).astype(np.float64)
    values = 3 * weights + chance.normal(0.0, 1.0, n) * weights
    ratio = values.sum() / weights.sum()
    error = math.sqrt(((values - ratio * weights) ** 2).sum()) / weights.sum()  # of a ratio, by linearization
    wanted = (ratio - 1.96 * error, ratio + 1.96 * error)
    assert paired_bootstrap(values, weights) == pytest.approx(wanted, abs=0.15 * error)


def test_few_units_have_no_interval():
    assert paired_bootstrap(np.full(LEAST, 3.0), np.ones(LEAST)) == (3.0, 3.0)
    assert paired_bootstrap(np.full(LEAST - 1, 3.0), np.ones(LEAST - 1)) is None


def test_pairs_of_one_uid_are_one_unit_and_others_are_alone():
    uids = ["a", None, "b", "a", None]
    pairs = [MinimalPair(("", ""), {"field": "f", "UID": uid} if uid else {"field": "f"}) for uid in uids]
    assert units(pairs).tolist() == [0, 1, 2, 0, 3]
