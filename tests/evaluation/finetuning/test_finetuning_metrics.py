"""Metrics of fine-tuning: against plain loops over their definitions, and published values."""

import math

import numpy as np
import pytest

from evaluation.finetuning.metrics import classification_metrics, entities, regression_metrics, token_metrics


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_classes_agree_with_the_definitions(classes):
    rng = np.random.default_rng(classes)
    gold, noise = rng.integers(0, classes, 200).tolist(), rng.integers(0, classes, 200).tolist()
    predicted = [g if rng.random() < 0.6 else n for g, n in zip(gold, noise, strict=True)]
    table = np.zeros((classes, classes), int)
    np.add.at(table, (gold, predicted), 1)
    f1 = [2 * table[c, c] / (table[c].sum() + table[:, c].sum()) for c in range(classes)]
    rows, columns, all_of = table.sum(1), table.sum(0), table.sum()  # R_K of Gorodkin (2004), of two classes Matthews'
    covariance = table.trace() * all_of - rows @ columns
    matthews = covariance / math.sqrt((all_of**2 - rows @ rows) * (all_of**2 - columns @ columns))
    found = classification_metrics(gold, predicted, classes)
    assert found["accuracy"] == pytest.approx(table.trace() / all_of, abs=1e-9)
    assert found["f1"] == pytest.approx(f1[1] if classes == 2 else np.mean(f1), abs=1e-9)
    assert found["matthews"] == pytest.approx(matthews, abs=1e-9)


def test_a_constant_prediction_has_no_correlation():
    assert classification_metrics([0, 1, 1], [1, 1, 1], 2) == {"accuracy": 2 / 3, "f1": 0.8, "matthews": 0.0}


def test_correlations_of_scores_agree_with_the_definitions():
    """Equal scores have their mean rank."""
    gold, predicted = [1.0, 2.0, 2.0, 4.0, 9.0], [0.5, 3.0, 1.0, 7.0, 6.0]
    ranks, scores = ([1, 2.5, 2.5, 4, 5], [1, 3, 2, 5, 4]), (gold, predicted)
    for name, (a, b) in (("spearman", ranks), ("pearson", scores)):
        a, b = a - np.mean(a), b - np.mean(b)
        assert regression_metrics(gold, predicted)[name] == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)))
    assert regression_metrics(gold, predicted)["r2"] == pytest.approx(1 - 20.25 / np.sum((gold - np.mean(gold)) ** 2))


def chunks_by_conlleval(labels):
    """The rules of the Perl script, one after the other; the rules of E and S come from its port to Python."""
    found, start = [], None
    before, kind_before = "O", ""
    for place, label in enumerate([*labels, "O"]):
        tag, _, kind = label.partition("-")
        ends = before in ("E", "S") or (before in ("B", "I") and tag in ("B", "S", "O"))
        ends |= before != "O" and kind_before != kind
        starts = tag in ("B", "S") or (before in ("O", "E", "S") and tag in ("I", "E"))
        starts |= tag != "O" and kind_before != kind
        if ends and start is not None:
            found.append((kind_before, start, place))
            start = None
        if starts:
            start = place
        before, kind_before = tag, kind
    return found


@pytest.mark.parametrize("prefixes", ["BI", "BIES"])
def test_entities_are_those_of_conlleval(prefixes):
    rng = np.random.default_rng(0)
    names = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("PER", "LOC"))]
    for _ in range(300):
        labels = rng.choice(names, size=int(rng.integers(0, 9))).tolist()
        assert list(entities(labels)) == chunks_by_conlleval(labels), labels


@pytest.mark.parametrize("inside, last, single", ["IES", "MES", "ILU"])
def test_single_words_and_last_words_of_entities_count(inside, last, single):
    """IOBES, and BMES and BILOU, which have other letters."""
    gold = ["B-PER", f"{inside}-PER", f"{last}-PER", "O", f"{single}-LOC", f"{single}-LOC"]
    assert list(entities(gold)) == [("PER", 0, 3), ("LOC", 4, 5), ("LOC", 5, 6)]
    found = token_metrics([gold], [["B-PER", f"{inside}-PER", f"{last}-PER", "O", "O", "O"]])
    assert (found["precision"], found["recall"], found["f1"]) == (1.0, 1 / 3, 0.5)
    lasts = entities(["B-PER", f"{last}-PER", f"{last}-PER", f"{inside}-PER"])
    assert list(lasts) == [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]
    assert "f1" in token_metrics([["O", f"{single}-LOC"]], [["O", "O"]])
    arabic = ["S----1-S2-", "U---------"]  # parts of speech
    assert token_metrics([arabic], [["U---------"] * 2]) == {"accuracy": 0.5}


def test_an_entity_counts_once_for_its_sentence():
    """The same place in another sentence is another entity."""
    found = token_metrics([["B-A"], ["O"], ["B-A"]], [["B-A"], ["B-A"], ["O"]])
    assert (found["precision"], found["recall"]) == (0.5, 0.5)
