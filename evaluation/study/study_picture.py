"""The picture of a study: a measure over the values of a key, with a line for each choice of the other keys."""

from typing import Any

import numpy as np

from data_prep.common.reading import MAX_FLOAT
from evaluation.study.study_arms import arm_name, in_name
from evaluation.study.study_file import Study
from evaluation.study.study_results import Comparisons
from pretrain.reporting import line_of

_LOG_FROM = 4  # values whose largest is so many times the smallest are spread by factors


def picture_of(study: Study, compared: Comparisons) -> dict[str, Any]:
    """The chart of a metric and its horizontal axis, as JSON values: means with intervals over a key.

    The key is the one with the most values; of equal ones the first one with numbers. Other values than numbers have
    equal distances.
    """
    values: dict[str, list[Any]] = {}
    for key in study.arms[0].overrides:
        every = [arm.overrides[key] for arm in study.arms]
        values[key] = [value for place, value in enumerate(every) if value not in every[:place]]
    numeric = {key for key, of in values.items() if all(map(_is_number, of))}
    key = max(values, key=lambda key: (len(values[key]), key in numeric))
    shown = sorted(values[key]) if key in numeric else values[key]
    places = shown if key in numeric else [*range(len(shown))]
    lines: dict[str, list[tuple[float, str]]] = {}
    for arm in study.arms:
        if arm.name in compared.means:
            others = arm_name({name: value for name, value in arm.overrides.items() if name != key})
            place = places[shown.index(arm.overrides[key])]
            lines.setdefault(others or compared.metric.title, []).append((place, arm.name))
    chart = {
        "title": f"{compared.metric.title} by {key}",
        "unit": compared.metric.unit,
        "log": False,
        "quiet": True,
        "lines": [_line(label, hue, sorted(points), compared) for hue, (label, points) in enumerate(lines.items())],
    }
    log = key in numeric and shown[0] > 0 and shown[-1] >= _LOG_FROM * shown[0]
    return {"charts": [chart], "key": {"name": key, "values": places, "labels": [*map(in_name, shown)], "log": log}}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_FLOAT


def _line(label: str, hue: int, points: list[tuple[float, str]], compared: Comparisons) -> dict[str, Any]:
    means = [compared.means[name] for _, name in points]
    ends = np.array([mean.interval or (mean.mean, mean.mean) for mean in means])
    x, y = np.array([place for place, _ in points], dtype=float), np.array([mean.mean for mean in means])
    return line_of(label, "points", x, y, hue=hue, low=ends[:, 0], high=ends[:, 1])
