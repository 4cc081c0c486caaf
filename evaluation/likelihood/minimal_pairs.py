"""Minimal-pair accuracy: how often the model gives the right sentence of a pair the higher likelihood.

File formats, each with a JSON object a line:
- BLiMP (Warstadt et al., "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", TACL 2020): sentence_good,
  sentence_bad and, optionally, UID, linguistics_term and field. BabyLM's supplement has the same form without a UID.
- EWoK (Ivanova et al., 2024, arXiv:2405.09605): Context1, Target1, Target2 and Domain.
- Entity tracking (Kim and Schuster, ACL 2023) as BabyLM has it: input_prefix, options (the first is right) and numops.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from data_prep.common.errors import UnusableInput
from data_prep.common.urls import file_name
from data_prep.storage import json_line_files, read_json_lines, spread

_Z = float(ndtri(0.975))  # of 95% intervals
_KEYS = ("field", "linguistics_term", "UID")
GROUPS = ("split", *_KEYS)
_FORM = "A file of pairs (.jsonl) has a JSON object a line, with sentence_good and sentence_bad."


@dataclass(frozen=True)
class MinimalPair:
    """A right text and one or more wrong ones.

    texts: the right one first. groups: the name for each kind in GROUPS that the file has.
    context: characters at the start of each text that are read, but not scored.
    """

    texts: tuple[str, ...]
    groups: dict[str, str]
    context: int = 0


def read_pairs(path: str, limit: int | None = None) -> list[MinimalPair]:
    """Read the pairs of a .jsonl file, also compressed (.gz, .zst), at most `limit` of each UID.

    Of a folder all such files are read; where a line has no UID, the name of its file is the UID.

    Raises UserError if a file cannot be read or a line is not a pair.
    """
    pairs = []
    for file in json_line_files(path):
        stem = file_name(file).partition(".")[0]
        uid = {} if file == path else {"UID": stem}
        pairs += [_pair(place, values, stem, uid) for place, values in read_json_lines(file)]
    return limited(pairs, limit) if limit else pairs


def _pair(place: str, values: dict[str, Any], stem: str, uid: dict[str, str]) -> MinimalPair:
    if "Context1" in values:
        context, *targets = (_text(place, name, values.get(name)) for name in ("Context1", "Target1", "Target2"))
        groups = {"UID": _text(place, "Domain", values.get("Domain"))}
        return MinimalPair(tuple(f"{context} {target}" for target in targets), groups, len(context))
    if "input_prefix" in values:
        prefix, options = _text(place, "input_prefix", values["input_prefix"]), values.get("options")
        if not isinstance(options, list) or len(options) < 2 or not isinstance(values.get("numops"), int):
            raise UnusableInput(f"{place} has no list of two or more options, or no number as numops")
        texts = tuple(prefix + _text(place, "an option", option) for option in options)
        return MinimalPair(texts, {"split": stem, "UID": f"{stem}_{values['numops']}_ops"}, len(prefix))
    for kind in _KEYS:
        if isinstance(values.get(kind), dict | list):
            raise UnusableInput(f"{place} has no text or number as {kind}")
    groups = uid | {kind: str(values[kind]) for kind in _KEYS if values.get(kind) is not None}
    texts = tuple(_text(place, name, values.get(name)) for name in ("sentence_good", "sentence_bad"))
    return MinimalPair(texts, groups)


def _text(place: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UnusableInput(f"{place} has no text as {name}. {_FORM}")
    return value


def limited(pairs: Sequence[MinimalPair], most: int) -> list[MinimalPair]:
    """Select at most `most` pairs of each UID, evenly spaced in file order."""
    members: dict[str, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        members[pair.groups.get("UID", "")].append(number)
    chosen = [number for numbers in members.values() for number in spread(numbers, most)]
    return [pairs[number] for number in sorted(chosen)]


def credits(pairs: Sequence[MinimalPair], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Credit per pair: 1 if its right text has the highest score, 0 if a wrong one has, 1 / n for a tie of n texts.

    Args:
        scores: of all texts of all pairs, in order.
    """
    ends = np.cumsum([len(pair.texts) for pair in pairs])
    highest = [of_pair == of_pair.max() for of_pair in np.split(scores, ends[:-1])]
    return np.array([of_pair[0] / of_pair.sum() for of_pair in highest])


def babylm_accuracy(pairs: Sequence[MinimalPair], credit: NDArray[np.float64]) -> float:
    """Accuracy as BabyLM's evaluation pipeline of 2025 counts it.

    A tie counts as right, because the pipeline takes the first of the likeliest texts, and the right text is the first.
    The result is the mean over UIDs; of entity tracking, the mean over splits of the means over their UIDs.
    """
    members: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for pair, value in zip(pairs, credit, strict=True):
        members[pair.groups.get("split", "")][pair.groups.get("UID", "")].append(bool(value > 0))
    return fmean(fmean(map(fmean, by_uid.values())) for by_uid in members.values())


def units(pairs: Sequence[MinimalPair]) -> NDArray[np.int64]:
    """Bootstrap unit of each pair: its UID, because such pairs are similar, or the pair itself without a UID."""
    uids = (pair.groups.get("UID") for pair in pairs)
    numbers: dict[str | int, int] = {}
    names = (number if uid is None else uid for number, uid in enumerate(uids))
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def pair_results(pairs: Sequence[MinimalPair], credit: NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy of all pairs and by group ("UID:name"), with 95% Wilson intervals, and BabyLM's, as JSON values."""
    members: dict[str, list[int]] = defaultdict(list)
    for kind in GROUPS:
        for number, pair in enumerate(pairs):
            if kind in pair.groups:
                members[f"{kind}:{pair.groups[kind]}"].append(number)
    by = {group: _accuracy(credit[numbers]) for group, numbers in members.items()}
    ties = int(((credit > 0) & (credit < 1)).sum())
    return _accuracy(credit) | {"babylm": babylm_accuracy(pairs, credit), "ties": ties, "by": by}


def _accuracy(credit: NDArray[np.float64]) -> dict[str, Any]:
    return {
        "accuracy": float(credit.mean()),
        "pairs": len(credit),
        "interval": wilson(float(credit.sum()), len(credit)),
    }


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95% interval of a share.

    Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    share, z2 = successes / n, _Z**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
