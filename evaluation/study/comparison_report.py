"""Report of a study: STUDY/report.html, report.md and report.json, with one table, one picture, and conclusions."""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.common.errors import UserError
from data_prep.common.files import write_file, write_json
from data_prep.common.reading import MAX_FLOAT
from evaluation.study.paired_statistics import MIN_PAIRS, Difference, Mean
from evaluation.study.study_arms import arm_name, in_name
from evaluation.study.study_file import Study
from evaluation.study.study_results import Comparisons, StudyResults, Unit, read_results
from pretrain.reporting import line_of, write_page

_SCRIPTS = ("page.js", "chart.js", "study.js")
_FORMATS = {"nats": ".4f", "number": ".4f", "seconds": ",.1f", "count": ",.0f"}
_MOST_NAMED = 4  # arms in a sentence
_LOG_FROM = 4  # values whose largest is so many times the smallest are spread by factors
_DECIDES = " (decides: it was chosen before the results)"
_YARDSTICK = (
    "Held-out loss and masked accuracy use 15% token masks for every arm. This favours arms that trained with such "
    "masks; minimal pairs and downstream tasks favour no arm."
)
_HOW = (
    "Means have 95% Student's t intervals. Differences are paired by seed. Holm's procedure corrects for all pairs of "
    "arms, and each interval has the level of its test: it excludes zero exactly if the difference is significant (*). "
    "For one measure, the chance of any false significant difference is at most 5%, if the number of seeds was fixed "
    "in advance. Adding seeds because of the report's results raises this chance. There is no correction across "
    "measures: decide by the measure that was chosen in advance. With fewer than three seeds, no difference is called "
    "significant."
)
_STOPPED = (
    "A sequential test stopped arms early. If all arms vary equally, the chance that it stops the arm that is truly "
    "the best is at most 5%. If the best arm is best by very little and varies three times as much as the others, it "
    "is stopped in 13% of studies (8 arms, 5 seeds). Only the arms that were not stopped are compared."
)


def write_study_report(study: Study) -> Path:
    """Write all files of the report from the finished runs. Return the path of the page.

    Raises UserError if a file cannot be written.
    """
    folder = study.folder
    results = read_results(study)
    values = _page_values(study, results)
    try:
        write_json(folder / "report.json", _as_json(study, results))
        write_file(folder / "report.md", _markdown(values).encode())
        write_page(values, folder / "report.html", _SCRIPTS)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: the report cannot be written ({error.strerror})") from None
    return folder / "report.html"


def _as_json(study: Study, results: StudyResults) -> dict[str, Any]:
    """Settings of each arm, values of each run, and by metric: means, differences and the conclusion."""
    metrics = {
        each.metric.key: {
            "means": {arm: asdict(mean) for arm, mean in each.means.items()},
            "from_baseline": {arm: asdict(minus) for arm, minus in each.from_baseline.items()},
            "conclusion": conclusion(each) if each.metric.better else None,
        }
        for each in results.comparisons
    }
    return {
        "baseline": study.baseline,
        "primary": study.primary,
        "arms": {arm.name: arm.overrides for arm in study.arms},
        "missing": results.missing,
        "stopped": results.stopped,
        "values": results.values,
        "metrics": metrics,
    }


def _page_values(study: Study, results: StudyResults) -> dict[str, Any]:
    """Contents of the page as JSON values."""
    compared = [each for each in results.comparisons if each.metric.better]
    return {
        "name": study.folder.absolute().name,
        "path": str(study.folder.absolute()),
        "time": time.time(),
        "summary": (
            f"{_count(len(study.arms), 'arm')}, {_count(study.seeds, 'seed')} each; {study.about}; "
            f"baseline {study.baseline}."
        ),
        "notices": _notices(study, results),
        "conclusions": [
            {"title": each.metric.title + _DECIDES * (each.metric.key == study.primary), "text": conclusion(each)}
            for each in compared
            if len(study.arms) > 1
        ],
        "table": _table(study, results),
        "how": [_HOW, _YARDSTICK, *([_STOPPED] if results.stopped else [])],
        **(picture_of(study, compared[0]) if compared else {"charts": []}),
        "axes": {},
        "marks": {},
        "counts": {},
    }


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


def _notices(study: Study, results: StudyResults) -> list[str]:
    """Warnings at the top of the report: arms that were stopped, and unfinished runs."""
    notices = []
    if results.stopped:
        named = ", ".join(f"{arm} (after {seeds} seeds)" for arm, seeds in results.stopped.items())
        test = f"The sequential test gave these arms no more seeds: {named}. This is not a significant difference."
        lost = f" The baseline {study.baseline} was stopped early, so there are no differences from it."
        notices.append(test + lost * (study.baseline in results.stopped))
    if missing := sorted(results.missing):
        names = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if missing[6:] else "")
        notices.append(f"{len(missing)} of {len(study.runs)} runs are not done, and are left out: {names}.")
    if not study.losses:
        notices.append("Held-out losses are not compared: some arms predict from both sides, others from the left.")
    return notices


def _markdown(values: dict[str, Any]) -> str:
    """The table and conclusions of the page in Markdown."""
    parts = [f"# {values['name']}\n", f"{values['summary']}\n", *(f"> {text}\n" for text in values["notices"])]
    parts += [f"**{each['title']}.** {each['text']}\n" for each in values["conclusions"]]
    header, *rows = values["table"]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    table = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
    return "\n".join([*parts, table, *(f"{text}\n" for text in values["how"])])


def _table(study: Study, results: StudyResults) -> list[list[str]]:
    """The table: a header and one row per arm. It has the differences of the primary measure from the baseline."""
    header, columns = ["arm", "seeds"], list[dict[str, str]]()
    for each in results.comparisons:
        header.append(each.metric.title)
        columns.append({arm: cell(mean, each.metric.unit) for arm, mean in each.means.items()})
        if each.from_baseline and each.metric.key == study.primary:
            header.append(f"minus {study.baseline}" + " (points)" * (each.metric.unit == "share"))
            columns.append({arm: cell(minus, each.metric.unit) for arm, minus in each.from_baseline.items()})
    done = {arm.name: 0 for arm in study.arms} | {arm: len(of) for arm, of in results.values.get("steps", {}).items()}
    return [header, *([arm, str(seeds), *(column.get(arm, "–") for column in columns)] for arm, seeds in done.items())]


def _value(number: float, unit: Unit, signed: bool = False) -> str:
    """Format a number for a table; differences of shares are in percentage points."""
    sign = "+" if signed else ""
    if unit == "share":
        text = format(100 * number, f"{sign}.2f") + ("" if signed else "%")
    else:
        text = format(number, sign + _FORMATS[unit])
    return text if re.search("[1-9]", text) else text.lstrip("+-")  # zero has no sign


def cell(estimate: Mean | Difference, unit: Unit) -> str:
    """Format as "3.1200 [3.1000, 3.1400]", or "-0.1200 [-0.1500, -0.0900] *": a star marks a significant difference."""
    is_difference = isinstance(estimate, Difference)
    star = " *" if isinstance(estimate, Difference) and estimate.significant else ""
    ends = ", ".join(_value(end, unit, is_difference) for end in estimate.interval or ())
    return _value(estimate.mean, unit, is_difference) + f" [{ends}]" * bool(ends) + star


def conclusion(comparisons: Comparisons) -> str:
    """What one metric says about the arms, as a sentence that is never stronger than the intervals."""
    metric, verdict = comparisons.metric, comparisons.verdict
    if verdict is None:
        going_on = [arm for arm in comparisons.means if arm not in comparisons.stopped]
        if comparisons.stopped and len(going_on) == 1:
            return f"{going_on[0]} is the only arm that was not stopped early."
        return "No two arms have a result of the same seed, so they cannot be compared."
    differences = verdict.differences[verdict.best]
    equal = [name for name in verdict.level if not float(_value(differences[name].mean, metric.unit, signed=True))]
    has = "have" if equal else "has"
    extreme = "highest" if metric.better == "higher" else "lowest"
    if len(equal) == len(differences):
        extreme = "same"
    sentence = f"{_listed([verdict.best, *equal])} {has} the {extreme} mean of {_count(verdict.seeds, 'seed')}"
    if verdict.left_out:
        sentence += f" (left out for lack of seeds: {_listed(verdict.left_out)})"
    if verdict.seeds < MIN_PAIRS:
        return f"{sentence}; fewer than {MIN_PAIRS} seeds show no significant difference."
    sentence += f"; significantly worse than {verdict.best}: {_listed(verdict.worse) or 'none'}"
    return sentence + (f"; not significantly: {_listed(verdict.level)}." if verdict.level else ".")


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count > 1)}"


def _listed(words: Sequence[str]) -> str:
    """The words with "and"; of many, some and how many more."""
    if len(words) > _MOST_NAMED:
        words = [*words[: _MOST_NAMED - 1], f"{len(words) - _MOST_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
