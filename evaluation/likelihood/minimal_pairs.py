"""Minimal-pair accuracy: how often the model gives the right sentence of a pair the higher likelihood.

File format: BLiMP's (Warstadt et al., "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", TACL 2020). Each
line is a JSON object with sentence_good, sentence_bad and, optionally, UID, linguistics_term and field.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from data_prep.common.errors import UnusableInput
from data_prep.storage import read_json_lines, spread

_Z = float(ndtri(0.975))  # of 95% intervals
GROUPS = ("field", "linguistics_term", "UID")
_FORM = "A file of pairs (.jsonl) has a JSON object a line, with sentence_good and sentence_bad."


@dataclass(frozen=True)
class MinimalPair:
    """A right and a wrong sentence. groups: the name for each kind in GROUPS that the file has."""

    good: str
    bad: str
    groups: dict[str, str]


def read_pairs(path: str, limit: int | None = None) -> list[MinimalPair]:
    """Read the pairs of a .jsonl file, also compressed (.gz, .zst), at most `limit` of each UID.

    Raises UserError if the file cannot be read or a line is not a pair.
    """
    pairs = [_pair(place, values) for place, values in read_json_lines(path)]
    return limited(pairs, limit) if limit else pairs


def _pair(place: str, values: dict[str, Any]) -> MinimalPair:
    for name in ("sentence_good", "sentence_bad"):
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise UnusableInput(f"{place} has no text as {name}. {_FORM}")
    for kind in GROUPS:
        if isinstance(values.get(kind), dict | list):
            raise UnusableInput(f"{place} has no text or number as {kind}")
    groups = {kind: str(values[kind]) for kind in GROUPS if values.get(kind) is not None}
    return MinimalPair(values["sentence_good"], values["sentence_bad"], groups)


def limited(pairs: Sequence[MinimalPair], most: int) -> list[MinimalPair]:
    """Select at most `most` pairs of each UID, evenly spaced in file order."""
    members: dict[str, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        members[pair.groups.get("UID", "")].append(number)
    chosen = [number for numbers in members.values() for number in spread(numbers, most)]
    return [pairs[number] for number in sorted(chosen)]


def credits(good: NDArray[np.float64], bad: NDArray[np.float64]) -> NDArray[np.float64]:
    """Credit per pair: 1 if the right sentence has the higher score, 0 if the wrong one has, 0.5 for a tie."""
    return np.where(good == bad, 0.5, (good > bad).astype(np.float64))


def units(pairs: Sequence[MinimalPair]) -> NDArray[np.int64]:
    """Bootstrap unit of each pair: its UID, because such pairs are similar, or the pair itself without a UID."""
    uids = (pair.groups.get("UID") for pair in pairs)
    numbers: dict[str | int, int] = {}
    names = (number if uid is None else uid for number, uid in enumerate(uids))
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def pair_results(pairs: Sequence[MinimalPair], credit: NDArray[np.float64]) -> dict[str, Any]:
    """Accuracy of all pairs and by group ("UID:name"), with 95% Wilson intervals, as JSON values."""
    members: dict[str, list[int]] = defaultdict(list)
    for kind in GROUPS:
        for number, pair in enumerate(pairs):
            if kind in pair.groups:
                members[f"{kind}:{pair.groups[kind]}"].append(number)
    by = {group: _accuracy(credit[numbers]) for group, numbers in members.items()}
    return _accuracy(credit) | {"ties": int((credit == 0.5).sum()), "by": by}


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
