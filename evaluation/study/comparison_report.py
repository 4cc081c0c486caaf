"""Report of a study: STUDY/report.html, report.md and report.json, with tables and conclusion sentences."""

import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.files import write_file, write_json
from evaluation.study.paired_statistics import Difference, Mean, Verdict
from evaluation.study.study_file import Study
from evaluation.study.study_results import Comparisons, Metric, StudyResults, Unit, read_results
from pretrain.config_files import flat, on_one_line
from pretrain.reporting import write_page

_SCRIPTS = ("page.js", "chart.js", "study.js")
_FORMATS = {"nats": ".4f", "number": ".4f", "seconds": ",.1f", "count": ",.0f"}
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
    """All results as JSON: values of each run; means, differences, verdict and conclusions by metric."""
    return {
        "study": str(study.folder.absolute()),
        "baseline": study.baseline,
        "primary": study.primary,
        "seeds": study.seeds,
        "missing": results.missing,
        "values": results.values,
        "metrics": {each.metric.key: asdict(each) for each in results.comparisons},
        "conclusions": {each.metric.key: conclusion(each, len(study.arms)) for each in _compared(study, results)},
    }


def _compared(study: Study, results: StudyResults) -> list[Comparisons]:
    """Comparisons by metrics that say which arm is better, the primary one first."""
    compared = [each for each in results.comparisons if each.metric.better]
    return sorted(compared, key=lambda each: each.metric.key != study.primary)


def _page_values(study: Study, results: StudyResults) -> dict[str, Any]:
    """Contents of the page as JSON values."""
    train, data, model = (study.config[section] for section in ("train", "data", "model"))
    # The legend has no values: the results have another held-out loss, of the finished models on more rows.
    chart = {
        "title": "Held-out loss during training, 15% token masks",
        "quiet": True,
        "unit": "nats",
        "log": False,
        "lines": results.lines,
    }
    return {
        "name": study.folder.absolute().name,
        "path": str(study.folder.absolute()),
        "time": time.time(),
        "baseline": study.baseline,
        "summary": (
            f"{len(study.arms)} ways to mask, {study.seeds} seed{'s' * (study.seeds > 1)} each; {study.steps:,} steps "
            f"of {train['global_batch_size']} rows of {data['seq_len']} slots; {model['arch']} of "
            f"{model['size']['layers']} layers of {model['size']['hidden']}; baseline {study.baseline}."
        ),
        "notices": _notices(study, results),
        "charts": [chart] if results.lines else [],
        "axes": {"tokens": [], "hours": []},  # each line has its own
        "marks": {},
        "counts": {},
        "section": _section(study, results),
        "how": [_HOW, _YARDSTICK],
        "arms": _arms_table(study),
    }


def _notices(study: Study, results: StudyResults) -> list[str]:
    """Warnings at the top of the report: unfinished runs."""
    if not (missing := sorted(results.missing)):
        return []
    names = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if missing[6:] else "")
    return [f"{len(missing)} of {len(study.runs)} runs are not done, and are left out: {names}."]


def _section(study: Study, results: StudyResults) -> dict[str, Any]:
    conclusions = []
    for each in _compared(study, results):
        text, *more = conclusion(each, len(study.arms))
        primary = each.metric.key == study.primary
        title = each.metric.title + (" (decides: it was chosen before the results)" if primary else "")
        conclusions.append({"title": title, "text": text, "more": more, "primary": primary})
    return {
        "explanation": (
            "All arms train for the same steps, and with the same seed on the same rows in the same order."
        ),
        "conclusions": conclusions,
        "means": _means_table(study, [each for each in results.comparisons if each.metric.better]),
        "costs": _means_table(study, [each for each in results.comparisons if not each.metric.better]),
        "differences": _differences_table(study, results.comparisons),
        "forests": [
            {
                "title": each.metric.title,
                "unit": each.metric.unit,
                "better": each.metric.better,
                "rows": [
                    {"name": arm, "mean": minus.mean, "interval": minus.interval, "apart": minus.significant}
                    for arm, minus in each.from_baseline.items()
                ],
            }
            for each in results.comparisons
            if each.from_baseline
        ],
    }


def _markdown(values: dict[str, Any]) -> str:
    """The tables and conclusions of the page in Markdown."""
    parts = [f"# {values['name']}\n", f"{values['summary']}\n", *(f"> {text}\n" for text in values["notices"])]
    section = values["section"]
    parts += ["## Results\n", f"{section['explanation']}\n"]
    parts += [f"**{each['title']}.** {' '.join([each['text'], *each['more']])}\n" for each in section["conclusions"]]
    parts += [_markdown_table(section[name]) for name in ("means", "costs")]
    parts += [f"Differences from {values['baseline']}:\n"]
    parts.append(_markdown_table(section["differences"]))
    return "\n".join([*parts, *(f"{text}\n" for text in values["how"])])


def _markdown_table(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table."""
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _value(number: float, unit: Unit, signed: bool = False) -> str:
    """Format a number for a table; differences of shares are in percentage points."""
    sign = "+" if signed else ""
    if unit == "share":
        text = format(100 * number, f"{sign}.2f") + ("" if signed else "%")
    else:
        text = format(number, sign + _FORMATS[unit])
    return text if re.search("[1-9]", text) else text.lstrip("+-")  # zero has no sign


def cell(estimate: Mean | Difference | None, unit: Unit) -> str:
    """Format as "3.1200 [3.1000, 3.1400]", or "-0.1200 [-0.1500, -0.0900] *": a star marks a significant difference."""
    if estimate is None:
        return "–"
    is_difference = isinstance(estimate, Difference)
    star = " *" if isinstance(estimate, Difference) and estimate.significant else ""
    return _value(estimate.mean, unit, is_difference) + _interval(estimate.interval, unit, is_difference) + star


def _means_table(study: Study, compared: Sequence[Comparisons]) -> list[list[str]]:
    """Table of means: a header and one row per arm."""
    names = {arm.name: arm.name + (" (baseline)" if arm.name == study.baseline else "") for arm in study.arms}
    rows = [
        [title, *(cell(each.means.get(arm), each.metric.unit) for each in compared)] for arm, title in names.items()
    ]
    return [["arm", *(each.metric.title for each in compared)], *rows]


def _arms_table(study: Study) -> list[list[str]]:
    """Table of what the arms differ in: a header with keys of masking, and one row per arm."""
    settings = [flat(arm.masking) for arm in study.arms]
    names = dict.fromkeys(name for values in settings for name in values)
    differing = [name for name in names if any(values.get(name) != settings[0].get(name) for values in settings)]
    shown = dict.fromkeys(["strategy", *differing])
    cells = [[on_one_line(values[name]) if name in values else "–" for name in shown] for values in settings]
    return [["arm", *shown], *([arm.name, *row] for arm, row in zip(study.arms, cells, strict=True))]


def _differences_table(study: Study, comparisons: Sequence[Comparisons]) -> list[list[str]]:
    """Table of differences from the baseline for the compared metrics: a header and one row per arm."""
    compared = [each for each in comparisons if each.metric.better]
    header = [each.metric.title + (" (points)" if each.metric.unit == "share" else "") for each in compared]
    names = [arm.name for arm in study.arms if arm.name != study.baseline]
    rows = [[name, *(cell(each.from_baseline.get(name), each.metric.unit) for each in compared)] for name in names]
    return [["arm", *header], *rows]


def conclusion(comparisons: Comparisons, n_arms: int) -> list[str]:
    """Conclusions about the arms from one metric, as sentences; never stronger than the intervals."""
    metric, verdict = comparisons.metric, comparisons.verdict
    if verdict is None:
        return [f"No two arms have a result of the same seed, so {metric.title} cannot be compared."]
    left_out = _left_out(verdict, n_arms - len(comparisons.means), n_arms)
    if verdict.seeds == 1:
        head = f"By {metric.title} no arm can be recommended: one seed does not show the variation by chance."
        return [f"{head} {_best(verdict, metric, 'value')}.", *left_out]
    sentences = []
    if verdict.worse:
        sentences.append(f"{verdict.best} is better than {_named(verdict, verdict.worse, metric)}.")
    if rest := [other for other in verdict.level if other not in _equal(verdict, metric)]:
        sentences.append(
            f"{_best(verdict, metric, 'mean')}, but with {verdict.seeds} seeds {verdict.best} does not differ "
            f"significantly from {_named(verdict, rest, metric)}."
        )
    elif verdict.level:
        sentences.append(f"{_best(verdict, metric, 'mean')}.")
    head = f"{verdict.best} is recommended by {metric.title}"
    if not verdict.worse:
        head = f"By {metric.title} no arm can be recommended"
    elif verdict.level:
        head = f"By {metric.title}, {verdict.best} is recommended over some arms, but not over {_listed(verdict.level)}"
    return [f"{head} ({verdict.seeds} seeds).", *sentences, *left_out]


def _equal(verdict: Verdict, metric: Metric) -> list[str]:
    """The arms whose difference from the best one is zero after rounding."""
    differences = verdict.differences[verdict.best]
    return [name for name in verdict.level if not float(_value(differences[name].mean, metric.unit, signed=True))]


def _best(verdict: Verdict, metric: Metric, what: str) -> str:
    """Which arms have the best mean or value, without a full stop."""
    equal = _equal(verdict, metric)
    if len(equal) == len(verdict.differences[verdict.best]):
        return f"{_listed([verdict.best, *equal])} have the same {what}"
    has = "have" if equal else "has"
    extreme = "highest" if metric.better == "higher" else "lowest"
    return f"{_listed([verdict.best, *equal])} {has} the {extreme} {what}"


def _left_out(verdict: Verdict, absent: int, n_arms: int) -> list[str]:
    sentences = [f"{absent} of {n_arms} arms have no result and are left out."] if absent else []
    if verdict.left_out:
        sentences.append(f"Left out, for lack of the {verdict.seeds} seeds of the others: {_listed(verdict.left_out)}.")
    return sentences


def _named(verdict: Verdict, others: Sequence[str], metric: Metric) -> str:
    """Names of other arms, with the difference of the best arm from each."""
    unit = " points" if metric.unit == "share" else f" {metric.unit}" if metric.unit == "nats" else ""
    named = []
    for other in others:
        difference = verdict.differences[verdict.best][other]
        interval = _interval(difference.interval, metric.unit, signed=True)
        named.append(f"{other} ({_value(difference.mean, metric.unit, signed=True)}{interval}{unit})")
    return _listed(named)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _interval(interval: tuple[float, float] | None, unit: Unit, signed: bool = False) -> str:
    if interval is None:
        return ""
    return f" [{_value(interval[0], unit, signed)}, {_value(interval[1], unit, signed)}]"
