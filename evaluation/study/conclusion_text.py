"""Tables and conclusion sentences of a study report."""

from collections.abc import Sequence

from evaluation.study.paired_statistics import MOST_SEEDS, POWER, Comparison, Difference, Mean, Verdict
from evaluation.study.study_file import Budget, Study
from evaluation.study.study_results import Comparisons, Metric, Unit

_FORMATS = {"nats": ".4f", "number": ".4f", "seconds": ",.1f", "count": ",.0f"}
BUDGET_TITLES: dict[Budget, str] = {"tokens": "Equal tokens", "time": "Equal time"}
YARDSTICK = (
    "Held-out loss and masked accuracy use 15% token masks for every arm. This favours arms that trained with such "
    "masks; minimal pairs and downstream tasks favour no arm."
)
HOW = (
    "Means have 95% Student's t intervals. Differences are paired by seed. Holm's procedure corrects for all pairs of "
    "arms, and each interval has the level of its test: it excludes zero exactly if the difference is significant (*). "
    "For one measure and one budget, the chance of any false significant difference is at most 5%, if the number of "
    "seeds was fixed in advance. Adding seeds because of the report's results raises this chance. There is no "
    "correction across measures and budgets: decide by the measure and the budget that were chosen in advance."
)


def value(number: float, unit: Unit, signed: bool = False) -> str:
    """Format a number for a table; differences of shares are in percentage points."""
    sign = "+" if signed else ""
    if unit == "share":
        return format(100 * number, f"{sign}.2f") + ("" if signed else "%")
    return format(number, sign + _FORMATS[unit])


def mean_cell(mean: Mean | None, unit: Unit) -> str:
    """Format as "3.1200 [3.1000, 3.1400]"; unknown parts are left out."""
    if mean is None:
        return "–"
    return value(mean.mean, unit) + _interval(mean.interval, unit)


def difference_cell(difference: Difference | None, unit: Unit) -> str:
    """Format as "-0.1200 [-0.1500, -0.0900] *"; the star marks a significant difference."""
    if difference is None:
        return "–"
    star = " *" if difference.told_apart else ""
    return value(difference.mean, unit, signed=True) + _interval(difference.interval, unit, signed=True) + star


def means_table(study: Study, found: Sequence[Comparisons]) -> list[list[str]]:
    """Table of means: a header and one row per arm."""
    rows = [["arm", *(one.metric.title for one in found)]]
    for arm in study.arms:
        cells = [mean_cell(one.means.get(arm.name), one.metric.unit) for one in found]
        rows.append([arm.name + (" (baseline)" if arm.name == study.baseline else ""), *cells])
    return rows


def differences_table(study: Study, found: Sequence[Comparisons]) -> list[list[str]]:
    """Table of differences from the baseline for the compared metrics: a header and one row per arm."""
    compared = [one for one in found if one.metric.better]
    rows = [["arm", *(_difference_title(one.metric) for one in compared)]]
    for arm in study.arms:
        if arm.name != study.baseline:
            cells = [difference_cell(one.from_baseline.get(arm.name), one.metric.unit) for one in compared]
            rows.append([arm.name, *cells])
    return rows


def _difference_title(metric: Metric) -> str:
    return metric.title + (" (points)" if metric.unit == "share" else "")


def conclusion(found: Comparisons, n_arms: int) -> list[str]:
    """Conclusions about the arms from one metric, as sentences; never stronger than the intervals."""
    metric, verdict = found.metric, found.verdict
    if verdict is None:
        return [f"No two arms have a result of the same seed, so {metric.title} cannot be compared."]
    sentences = _left_out(verdict, n_arms - len(found.means), n_arms)
    if verdict.seeds == 1:
        return [
            f"By {metric.title} no arm can be recommended: one seed does not show the variation by chance. "
            f"{verdict.best} has the {_superlative(metric)} value.",
            *sentences,
        ]
    if verdict.worse:
        sentences.insert(0, f"{verdict.best} is better than {_named(verdict.worse, metric)}.")
    if verdict.level:
        sentences.append(_undecided(verdict, metric))
    head = f"{verdict.best} is recommended by {metric.title}"
    if not verdict.worse:
        head = f"By {metric.title} no arm can be recommended"
    elif verdict.level:
        others = _listed([one.other for one in verdict.level])
        head = f"By {metric.title}, {verdict.best} is recommended over some arms, but not over {others}"
    return [f"{head} ({verdict.seeds} seeds).", *sentences]


def _left_out(verdict: Verdict, absent: int, n_arms: int) -> list[str]:
    sentences = [f"{absent} of {n_arms} arms have no result and are left out."] if absent else []
    if verdict.left_out:
        one = len(verdict.left_out) == 1
        seeds = "1 seed" if verdict.seeds == 1 else f"{verdict.seeds} seeds"
        sentences.append(
            f"{_listed(verdict.left_out)} {'lacks' if one else 'lack'} results of the {seeds} that the other arms "
            f"share, and {'is' if one else 'are'} left out."
        )
    return sentences


def _undecided(verdict: Verdict, metric: Metric) -> str:
    known = [f"{one.seeds:,} seeds for {one.other}" for one in verdict.level if one.seeds]
    more = [one.other for one in verdict.level if one.seeds is None and one.difference.sd and one.difference.mean]
    needed = [*known, *([f"more than {MOST_SEEDS:,} for {_listed(more)}"] if more else [])]
    text = (
        f"{verdict.best} has the {_superlative(metric)} mean, but with {verdict.seeds} seeds it does not differ "
        f"significantly from {_named(verdict.level, metric)}."
    )
    if needed:
        text += (
            f" If the true means and deviations equal the measured ones, a significant difference needs roughly "
            f"{_listed(needed)}, at a power of {POWER:.0%}."
        )
    return text


def _named(comparisons: Sequence[Comparison], metric: Metric) -> str:
    unit = " points" if metric.unit == "share" else f" {metric.unit}" if metric.unit == "nats" else ""

    def one(found: Comparison) -> str:
        difference = found.difference
        interval = _interval(difference.interval, metric.unit, signed=True)
        return f"{found.other} ({value(difference.mean, metric.unit, signed=True)}{interval}{unit})"

    return _listed([one(found) for found in comparisons])


def _superlative(metric: Metric) -> str:
    return "highest" if metric.better == "higher" else "lowest"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _interval(interval: tuple[float, float] | None, unit: Unit, signed: bool = False) -> str:
    if interval is None:
        return ""
    return f" [{value(interval[0], unit, signed)}, {value(interval[1], unit, signed)}]"


def markdown(rows: list[list[str]]) -> str:
    """Format rows as a Markdown table."""
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
