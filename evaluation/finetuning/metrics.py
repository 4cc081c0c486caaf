"""Metrics of the fine-tuning tasks, as shares from 0 to 1 (correlations: -1 to 1)."""

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain

_FIRST, _INSIDE, _LAST = {"B", "S", "U"}, {"I", "M", "E", "L"}, {"E", "L", "S", "U"}  # label prefixes of entity words


def classification_metrics(gold: Sequence[int], predicted: Sequence[int], classes: int) -> dict[str, float]:
    """Accuracy, F1 and Matthews correlation of class numbers.

    F1 of class 1 for two classes, else the mean over the classes that occur (macro).
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    average = "binary" if classes == 2 else "macro"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn warns if a few examples have only one label
        matthews = float(matthews_corrcoef(gold, predicted))
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "f1": float(f1_score(gold, predicted, average=average, zero_division=0)),
        "matthews": matthews,
    }


def regression_metrics(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, float]:
    """Spearman's and Pearson's correlation, 0 if all scores of a side are equal, and the explained variance."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import r2_score

    vary = len(set(gold)) > 1 and len(set(predicted)) > 1
    return {
        "spearman": float(spearmanr(gold, predicted).statistic) if vary else 0.0,
        "pearson": float(pearsonr(gold, predicted).statistic) if vary else 0.0,
        "r2": float(r2_score(gold, predicted)) if len(set(gold)) > 1 else 0.0,
    }


def token_metrics(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """Word accuracy and, for entity labels, precision, recall and F1 over all kinds of entities (micro)."""
    pairs = list(zip(chain(*gold), chain(*predicted), strict=True))
    metrics = {"accuracy": sum(a == b for a, b in pairs) / len(pairs)}
    if not any(names_entities(labels) for labels in gold):
        return metrics
    wanted = {(number, *entity) for number, labels in enumerate(gold) for entity in entities(labels)}
    found = {(number, *entity) for number, labels in enumerate(predicted) for entity in entities(labels)}
    return metrics | precision_recall(len(wanted & found), len(found), len(wanted))


def names_entities(labels: Sequence[str]) -> bool:
    """Whether labels are entity labels: B-PER, I-PER; E-PER, S-PER (IOBES); L-PER, U-PER (BILOU)."""
    return any(re.match(r"[BIELSU]-\w", label) for label in labels)


def entities(labels: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(kind, first word, last word + 1) of each entity.

    Same rules as conlleval and seqeval: an entity begins at B- and S-, and at I- and E- if no entity of its kind is
    open. It ends with E- and S-, and before a word that does not continue it. M- counts as I-, L- and U- as E- and S-.
    """
    kind, begin = None, 0
    for place, label in enumerate([*labels, "O"]):
        prefix, _, own = label.partition("-")
        if kind is not None and (prefix not in _INSIDE or own != kind):
            yield kind, begin, place
            kind = None
        if kind is None and prefix in _INSIDE | _FIRST:
            kind, begin = own, place
        if kind is not None and prefix in _LAST:
            yield kind, begin, place + 1
            kind = None


def f_beta(precision: float, recall: float, beta: float = 1.0) -> float:
    """F-beta: weighted harmonic mean, recall counts `beta` times as much as precision; 0 if both are 0."""
    bottom = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / bottom if bottom else 0.0


def share(part: int, whole: int) -> float:
    """`part` / `whole`; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def precision_recall(right: int, found: int, wanted: int) -> dict[str, float]:
    """Precision right/found, recall right/wanted, and F1; a ratio with denominator 0 is 0."""
    precision, recall = share(right, found), share(right, wanted)
    return {"precision": precision, "recall": recall, "f1": f_beta(precision, recall)}
