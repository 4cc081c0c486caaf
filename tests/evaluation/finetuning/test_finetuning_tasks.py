"""Fine-tuning tasks: what their models read and predict, and the metrics of the outputs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_prep.common.errors import UserError
from evaluation.finetuning import FinetuneSettings, label_tasks, open_task
from evaluation.finetuning.cloze_repair import Edit, RepairPair, RepairRow, RepairTask, pair_of, repair_metrics
from evaluation.finetuning.heads import IGNORED
from evaluation.finetuning.label_tasks import Classification, Regression, TokenTask
from tests.support.finetuning import WORDS, tiny_tokenizer, write

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def ids(text):
    return [WORDS.index(word) for word in text.split()]


def answers(values):
    """The outputs of a head, one array for each example."""
    return [np.asarray(value) for value in values]


def test_pairs_of_sentences(tmp_path, tokenizer):
    rows = "sentence1\tsentence2\tlabel\nthe ship\tsails\tyes\nold\tnew\tno\nold\told\tyes\n"
    path = write(tmp_path / "nli.tsv", rows)
    task = Classification(FinetuneSettings("classification"), path, path, tokenizer)
    example = task.heads[0].examples[0]
    assert example["input_ids"] == [CLS, *ids("the ship"), SEP, *ids("sail ##s"), SEP]
    assert example["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert task.heads[0].options["id2label"] == {0: "no", 1: "yes"}
    assert [example["labels"] for example in task.heads[0].examples] == [1, 0, 1]
    assert task.evaluate([answers([1, 1, 1])])["accuracy"] == 2 / 3
    assert task.metric == "accuracy"


def test_the_baseline_of_classes_knows_the_tokens_and_not_their_order(tmp_path, tokenizer):
    train = write(tmp_path / "a.tsv", "text\tlabel\n" + "the ship\tyes\n" + "old new\tno\n" * 3 + "new\tno\n" * 3)
    held_out = write(tmp_path / "b.tsv", "text\tlabel\nship the\tyes\nthe the ship new\tyes\nold\tno\nnew the\tyes\n")
    task = Classification(FinetuneSettings("classification"), train, held_out, tokenizer)
    examples = task.heads[0].examples
    found = label_tasks.naive_bayes(examples, [example["labels"] for example in examples], task.heads[0].held_out([]))
    # "ship the" by counts one higher than they are, over 12 ids: "yes" 1/7 (2/16)^4, "no" 6/7 (7/33)^2 (1/33)^2
    assert found == [0, 1, 0, 0]
    assert (task.without_model, task.baseline["accuracy"]) == ("naive Bayes on token counts", 2 / 4)


def test_the_baseline_of_classes_is_the_most_frequent_label_where_that_is_better(tmp_path, tokenizer):
    """By the main metric, so that a model which always says yes is not above it."""
    train = write(tmp_path / "a.tsv", "text\tlabel\n" + "the ship\tyes\n" * 4 + "old\tno\n" * 3)
    held_out = write(tmp_path / "b.tsv", "text\tlabel\n" + "old\tyes\n" * 2 + "the ship\tyes\nold\tno\n")
    task = Classification(FinetuneSettings("classification", metric="f1"), train, held_out, tokenizer)
    assert (task.without_model, task.baseline["f1"]) == ("the most frequent training label", 2 * 3 / 7)
    task = Classification(FinetuneSettings("classification", metric="matthews"), train, held_out, tokenizer)
    assert task.without_model == "naive Bayes on token counts"


def test_scores_of_pairs_and_their_baseline(tmp_path, tokenizer):
    rows = "sentence1\tsentence2\tscore\nthe ship\tsails\t2.5\nold\tnew\t 0\nold\told\t5\n"
    train = write(tmp_path / "a.tsv", rows)
    valid = write(tmp_path / "b.tsv", rows.replace("the ship\tsails\t2.5", "The ship\tsails the\t1.5"))
    task = Regression(FinetuneSettings("regression", limit_valid=2), train, valid, tokenizer)
    (head,) = task.heads
    assert [example["labels"] for example in head.examples] == [2.5, 0, 5]
    assert (head.options["id2label"], head.options["problem_type"]) == ({0: "score"}, "regression")
    assert (task.metric, task.without_model) == ("spearman", "the share of common words")
    # The line is 1.25 without common words and 5 with equal texts: 2.5 and 1.25 here.
    assert task.baseline == pytest.approx({"spearman": 1, "pearson": 1, "r2": 1 - (1 + 1.25**2) / (2 * 0.75**2)})
    metrics = task.evaluate([[*head.read(torch.tensor([[0.5], [0.25]]))]])
    assert metrics == pytest.approx({"spearman": 1, "pearson": 1, "r2": 1 - (1 + 0.25**2) / (2 * 0.75**2)})


def test_the_baseline_of_scores_of_single_texts_is_the_mean(tmp_path, tokenizer):
    path = write(tmp_path / "a.tsv", "text\tscore\nthe\t1\nship\t3\n")
    task = Regression(FinetuneSettings("regression"), path, path, tokenizer)
    assert task.without_model == "the mean training score"
    assert task.baseline == {"spearman": 0, "pearson": 0, "r2": 0}


@pytest.mark.parametrize(
    "scores, said",
    [
        ("1 nan", "line 3: the score 'nan' is not a finite number"),
        ("1 high", "line 3: the score 'high' is not a finite number"),
        ("1 1", "all examples have the score 1; two scores are needed"),
    ],
)
def test_scores_that_cannot_be_learnt_are_refused(tmp_path, tokenizer, scores, said):
    path = write(tmp_path / "a.tsv", "text\tscore\n" + "".join(f"the\t{score}\n" for score in scores.split()))
    with pytest.raises(UserError, match=said):
        Regression(FinetuneSettings("regression"), path, path, tokenizer)


@pytest.mark.parametrize("task, name, text", [
    ("classification", "a.tsv", "text\tlabel\n" + "".join(f"{word}\t{n % 2}\n" for n, word in enumerate(WORDS))),
    ("regression", "a.tsv", "text\tscore\n" + "".join(f"{word}\t{n}\n" for n, word in enumerate(WORDS))),
    ("tokens", "a.conll", "".join(f"{word} L{n}\n\n" for n, word in enumerate(WORDS))),
    ("repair", "a.tsv", "wrong\tright\n" + "".join(f"{word}\told\n" for word in WORDS)),
])  # fmt: skip
def test_a_search_measures_on_training_examples_that_it_does_not_train_on(tmp_path, tokenizer, task, name, text):
    """The held-out file is not even there. At most a fifth of the examples is left out, the same in every call."""
    path, valid, settings = write(tmp_path / name, text), str(tmp_path / "missing"), FinetuneSettings(task, search=100)
    opened, again = (open_task(settings, path, valid, tokenizer) for _ in range(2))
    learnt = [example["input_ids"] for example in opened.heads[0].examples]
    measured = [example["input_ids"] for example in opened.heads[0].held_out([])]
    assert (len(measured), len(learnt)) == (len(WORDS) // 5, len(WORDS) - len(WORDS) // 5)
    assert not [ids for ids in measured if ids in learnt]
    assert [example["input_ids"] for example in again.heads[0].held_out([])] == measured
    three = write(tmp_path / f"few-{name}", "".join(text.splitlines(keepends=True)[:4]))
    with pytest.raises(UserError, match="examples are too few to choose settings with"):
        open_task(settings, three, valid, tokenizer)


def test_integer_labels_are_in_their_order_and_colas_metric_is_matthews(tmp_path, tokenizer):
    path = write(tmp_path / "cola.tsv", "".join(f"x\t{label}\t\tthe ship\n" for label in (10, 9, 2, 1)))
    task = Classification(FinetuneSettings("classification"), path, path, tokenizer)
    assert list(task.heads[0].options["id2label"].values()) == ["1", "2", "9", "10"]
    assert task.metric == "matthews"


def test_pairs_whose_annotators_did_not_agree_are_left_out_and_counted(tmp_path, tokenizer):
    """As SNLI and MultiNLI have them; a limit is of the others."""
    header = "gold_label\tsentence1\tsentence2\n"
    train = write(tmp_path / "a.tsv", header + "-\tnew\told\nno\told\tnew\n-\tthe\tthe\nyes\told\told\n")
    valid = write(tmp_path / "b.tsv", header + "- \tnew\told\nyes\told\told\n")
    task = Classification(FinetuneSettings("classification", limit=2), train, valid, tokenizer)
    assert task.heads[0].options["id2label"] == {0: "no", 1: "yes"}
    assert [example["labels"] for example in task.heads[0].examples] == [0, 1]
    said = "examples are left out, whose gold_label is '-'"
    assert task.notes == [f"{train}: 2 of 4 {said}", f"{valid}: 1 of 2 {said}"]
    assert task.evaluate([answers([1])])["accuracy"] == 1
    none = write(tmp_path / "c.tsv", header + "-\tnew\told\n")
    with pytest.raises(UserError, match=r"c\.tsv: the gold_label of all 1 examples is '-'"):
        Classification(FinetuneSettings("classification"), train, none, tokenizer)
    other = write(tmp_path / "d.tsv", "text\tlabel\nthe ship\t-\nold\t+\n")
    assert len(Classification(FinetuneSettings("classification"), other, other, tokenizer).heads[0].examples) == 2


def test_labels_that_cannot_be_learnt_are_refused(tmp_path, tokenizer):
    good = write(tmp_path / "a.tsv", "text\tlabel\nthe ship\t1\nold\t0\n")
    alike = write(tmp_path / "b.tsv", "text\tlabel\nthe ship\t1\nold\t1\n")
    other = write(tmp_path / "c.tsv", "text\tlabel\nthe ship\t1\nold\t2\n")
    empty = write(tmp_path / "d.tsv", "text\tlabel\nthe ship\t1\nold\t \n")
    for train, valid, said in (
        (alike, good, r"b\.tsv: all 2 examples have the label '1'"),
        (good, other, r"c\.tsv, line 3: no training example has the label '2'"),
        (good, empty, r"d\.tsv, line 3: the label is empty"),
    ):
        with pytest.raises(UserError, match=said):
            Classification(FinetuneSettings("classification"), train, valid, tokenizer)


@pytest.mark.parametrize(
    "labels, wanted",
    [({"10", "9", "-1"}, ["-1", "9", "10"]), ({"--1", "2", "10"}, ["--1", "10", "2"]), ({"-", "1"}, ["-", "1"])],
)
def test_labels_that_are_not_all_integers_are_in_the_order_of_names(labels, wanted):
    assert [*label_tasks.number_labels("a", "all have", labels)] == wanted


@pytest.mark.parametrize("task, name, text", [
    ("classification", "a.tsv", "text\tlabel\nthe\t1\n"),
    ("classification", "a.tsv", "a\tb\nthe\t1\n"),
    ("classification", "a.tsv", "text\tgold_label\nthe\t-\n"),
    ("classification", "a.tsv", "text\tlabel\nthe\n"),
    ("tokens", "a.conll", "the O\n"),
    ("tokens", "a.conll", "\u00a0 O\n\u00a0 B-X\n"),
    ("tokens", "a.conll", "the\n"),
    ("repair", "a.tsv", "a\tb\n"),
    ("repair", "a.tsv", "wrong\tright\nthe\tthe\n"),
])  # fmt: skip
def test_what_opens_an_address_is_not_said(tmp_path, tokenizer, task, name, text):
    (tmp_path / f"{name}?token=abc").write_text(text, encoding="utf-8")
    address = f"file://{tmp_path}/{name}?token=abc"
    with pytest.raises(UserError, match=f"{name}[:, ]") as raised:
        open_task(FinetuneSettings(task, max_length=32), address, address, tokenizer)
    assert "abc" not in str(raised.value)


def test_labels_stand_at_the_first_token_of_a_word(tmp_path, tokenizer):
    text = "the O\nships B-X\nin O\nyork B-Y\n\nnew B-Y\nyork I-Y\n"
    path = write(tmp_path / "a.conll", text)
    task = TokenTask(FinetuneSettings("tokens", max_length=6), path, path, tokenizer)
    assert list(task.heads[0].options["id2label"].values()) == ["B-X", "B-Y", "I-Y", "O"]
    first = task.heads[0].examples[0]
    assert first["input_ids"] == [CLS, *ids("the ship ##s in"), SEP]
    assert first["labels"] == [IGNORED, 3, 0, IGNORED, 3, IGNORED]
    assert task.notes == ["2 of 4 sentences are longer than 6 tokens, and are cut"]
    outputs = answers([[9, 3, 0, 9, 1, 9], [9, 1, 2, 9]])  # 9: must not be used
    assert task.evaluate([outputs]) == {"accuracy": 4 / 6, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}


def test_a_token_with_the_space_before_it_is_the_word_behind():
    """As byte-level tokenizers may say."""
    assert label_tasks.first_tokens(["the", "ship", "in"], [(0, 0), (0, 3), (3, 6), (6, 8), (0, 0)]) == [1, 2, None]


def test_sentences_without_a_label_to_learn_are_left_out_of_training_alone(tmp_path, tokenizer):
    """Of a no-break space no token is made. A batch of such sentences would have no loss, but NaN."""
    train = write(tmp_path / "a", "the O\nship B-X\n\n\u00a0 O\n")
    task = TokenTask(FinetuneSettings("tokens"), train, train, tokenizer)
    assert [example["input_ids"] for example in task.heads[0].examples] == [[CLS, *ids("the ship"), SEP]]
    assert task.evaluate([answers([[9, 1, 0, 9], [9, 9]])])["accuracy"] == 1
    nothing = write(tmp_path / "b", "\u00a0 O\n\u00a0 B-X\n")
    with pytest.raises(UserError, match="no word has a token within 8; nothing can be learnt"):
        TokenTask(FinetuneSettings("tokens", max_length=8), nothing, train, tokenizer)


def test_a_label_of_words_that_is_new_is_refused(tmp_path, tokenizer):
    train, valid = write(tmp_path / "a", "the O\nship B-X\n"), write(tmp_path / "b", "the O\n\nthe O\nship B-Z\n")
    with pytest.raises(UserError, match=r"b, line 3: no training example has the label 'B-Z' of 'ship'"):
        TokenTask(FinetuneSettings("tokens"), train, valid, tokenizer)
    with pytest.raises(UserError, match="all words have the label 'O'"):
        TokenTask(FinetuneSettings("tokens"), write(tmp_path / "c", "the O\n"), valid, tokenizer)


def words(text):
    """Words of ids: pieces belong to the word before."""
    found = []
    for token in text.split():
        if token.startswith("##"):
            found[-1] += (WORDS.index(token),)
        else:
            found.append((WORDS.index(token),))
    return found


@pytest.mark.parametrize("wrong, right, labels", [
    ("the ship sail", "the ship sail ##s", [0, 0, 3]),
    ("the ship ##s sail", "the ship sail", [0, 2, 0]),
    ("the the ship", "the ship", [0, 1, 0]),
    ("the ship", "the old ship", [0, 0]),
    ("old red ship", "new ship ##s sail", [5, 1, 1]),
    ("the ship", "the ship", [0, 0]),
])  # fmt: skip
def test_labels_say_by_how_many_tokens_a_word_is_replaced(wrong, right, labels):
    assert sorted(pair_of(words(wrong), words(right)).labels) == sorted(labels)
    if wrong != "the the ship":  # either of the two is too many
        assert pair_of(words(wrong), words(right)).labels == labels


ROW = RepairRow((CLS,), (SEP,), MASK, 32)


def test_what_detector_and_filler_see():
    edits = [Edit(1, 3, tuple(ids("red"))), Edit(3, 4, tuple(ids("sail ##ed")))]
    pair = RepairPair(words("the ship ##s old sail"), edits, ())
    detecting = ROW.detecting(pair.words, pair.labels)
    assert detecting["input_ids"] == [CLS, *ids("the ship ##s old sail"), SEP]
    assert detecting["labels"] == [IGNORED, 0, 2, IGNORED, 1, 3, IGNORED]
    filling = ROW.filling(pair.words, pair.labels, pair.edits)
    assert filling["input_ids"] == [CLS, *ids("the"), MASK, MASK, MASK, SEP]
    assert filling["labels"] == [IGNORED, IGNORED, *ids("red sail ##ed"), IGNORED]
    found = np.array([0, 0, *ids("red sail ##ed"), 0])
    assert ROW.filled(pair.words, pair.labels, found) == [(5,), tuple(ids("red")), (), tuple(ids("sail ##ed"))]
    assert ROW.labels(pair.words, np.array([9, 0, 2, 9, 1, 3, 9])) == pair.labels


def test_words_that_do_not_fit_are_kept():
    short = replace(ROW, max_length=4)
    assert short.detecting(words("the ship ##s"), [0, 1])["input_ids"] == [CLS, *ids("the"), SEP]
    assert short.labels(words("the ship ##s"), np.array([9, 3, 9])) == [3, 0]
    masks = short.filling(words("the ship"), [0, 4])
    assert masks["input_ids"] == [CLS, *ids("the"), SEP]
    assert short.filled(words("the ship"), [0, 4], np.array([0, 0, 0])) == [(5,), (MASK, MASK, MASK)]


def test_metrics_of_repair_by_hand():
    pairs = [
        pair_of(words("the ship ##s sail"), words("the ship sail")),  # 2 tokens wrong
        pair_of(words("old ship"), words("new ship")),  # 1
        pair_of(words("the red ship"), words("the red ship")),
        pair_of(words("the ship"), words("the old ship")),  # a word is missing
    ]
    labels = [[0, 2, 0], [2, 2], [0, 0, 2], [0, 0]]
    outputs = [words("the ship sail"), words("new red"), words("the red red"), words("the ship")]
    found = repair_metrics(pairs, labels, outputs)
    wanted = {
        "detection_precision": 3 / 5,  # taken: 2 + 2 + 1
        "detection_recall": 1.0,
        "detection_f1": 0.75,
        "detection_f0.5": 1.25 * 0.6 / (0.25 * 0.6 + 1),
        "repair_precision": 3 / 5,
        "repaired_tokens": 1.0,
        "repair_f0.5": 1.25 * 0.6 / (0.25 * 0.6 + 1),
        "repaired_sentences": 1 / 3,
        "right_sentences": 1 / 4,
    }
    assert found == pytest.approx(wanted)
    worse = repair_metrics(pairs, labels, [words("the old sail"), *outputs[1:]])
    assert (worse["repaired_tokens"], worse["detection_recall"]) == (pytest.approx(1 / 3), 1.0)


def test_a_word_that_was_kept_is_repaired_and_not_taken_for_wrong():
    """The alignment has it in a longer edit: of 3 wrong tokens 1 was taken, and all are right in the end."""
    pair = RepairPair(words("the red ship"), [Edit(0, 3, tuple(ids("the old ship")))], tuple(ids("the old ship")))
    found = repair_metrics([pair], [[0, 2, 0]], [words("the old ship")])
    assert (found["repair_precision"], found["repaired_tokens"], found["repair_f0.5"]) == (1.0, 1.0, 1.0)
    assert found["detection_recall"] == 1 / 3


def test_a_repair_goes_through_both_models(tmp_path, tokenizer):
    lines = [{"wrong": "the ship sails", "right": "the ship sailed"}, {"wrong": "old ship", "right": "old ship"}]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    task = RepairTask(FinetuneSettings("repair"), path, path, tokenizer)
    detected, filled = answers([[9, 0, 0, 3, 9, 9], [9, 0, 0, 9]]), answers([[0, 0, 0, *ids("sail ##ed"), 0], [0] * 4])
    detector, filler = task.heads
    assert detector.held_out([])[0]["input_ids"] == [CLS, *ids("the ship sail ##s"), SEP]
    assert filler.held_out([detected])[0]["input_ids"] == [CLS, *ids("the ship"), MASK, MASK, SEP]
    assert task.evaluate([detected, filled]) == pytest.approx(dict.fromkeys(task.baseline, 1.0))
    assert task.baseline["right_sentences"] == 0.5
    assert [len(head.examples) for head in task.heads] == [2, 1]
    logits = torch.zeros(1, 1, len(WORDS))
    logits[0, 0, [MASK, SEP, 7, 8]] = torch.tensor([9.0, 8.0, 2.0, 3.0])
    assert filler.read(logits).tolist() == [[8]]  # no special token


def test_pairs_that_teach_nothing_are_refused(tmp_path, tokenizer):
    path = write(tmp_path / "a.tsv", "wrong\tright\nthe ship\tthe ship\nthe the\tthe\n")
    with pytest.raises(UserError, match="no edit replaces a word"):
        RepairTask(FinetuneSettings("repair"), path, path, tokenizer)
    with pytest.raises(UserError, match=r"has no column 'wrong', but 'a', 'b'\. Name columns with --columns"):
        RepairTask(FinetuneSettings("repair"), write(tmp_path / "b.tsv", "a\tb\nx\ty\n"), path, tokenizer)
