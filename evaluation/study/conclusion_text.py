"""A study's figures and conclusions in words, for the page and for the table in Markdown."""

from collections.abc import Sequence

from evaluation.study.paired_statistics import MOST_SEEDS, POWER, Comparison, Difference, Mean, Verdict
from evaluation.study.study_file import Budget, Study
from evaluation.study.study_results import Comparisons, Metric, Unit

_FORMATS = {"nats": ".4f", "number": ".4f", "seconds": ",.1f", "count": ",.0f"}
BUDGET_TITLES: dict[Budget, str] = {"tokens": "Equal tokens", "time": "Equal time"}
YARDSTICK = (
    "Held-out loss and masked accuracy are those of 15% token masks for every arm. Arms that trained with such masks "
    "are at home there; minimal pairs and downstream tasks are masked by no arm's rule."
)
HOW = (
    "The interval of a mean is Student's at 95%. Differences are paired by seed. All pairs of arms are one family, "
    "from which both the differences from the baseline and the conclusions are taken; each interval is at the level "
    "at which Holm's procedure tests it, and excludes zero just where its arms are told apart (*). By one measure "
    "at one budget, the chance that any two equal arms are told apart is at most 5%, if the number of seeds was "
    "fixed beforehand: where seeds are added after a look at the report, because of what it says, the chance is "
    "larger. Measures and budgets are not corrected for one another, and each has its own 5%: go by the measure and "
    "the budget that were chosen before."
)


def value(number: float, unit: Unit, signed: bool = False) -> str:
    """A number as a table has it; differences of shares are in percentage points."""
    sign = "+" if signed else ""
    if unit == "share":
        return format(100 * number, f"{sign}.2f") + ("" if signed else "%")
    return format(number, sign + _FORMATS[unit])


def mean_cell(mean: Mean | None, unit: Unit) -> str:
    """ "3.1200 [3.1000, 3.1400]"; what is not known is left out."""
    if mean is None:
        return "–"
    return value(mean.mean, unit) + _interval(mean.interval, unit)


def difference_cell(difference: Difference | None, unit: Unit) -> str:
    """ "-0.1200 [-0.1500, -0.0900] *": the star stands where the arms are told apart."""
    if difference is None:
        return "–"
    star = " *" if difference.told_apart else ""
    return value(difference.mean, unit, signed=True) + _interval(difference.interval, unit, signed=True) + star


def means_table(study: Study, found: Sequence[Comparisons]) -> list[list[str]]:
    """A line of titles, and one for each arm."""
    rows = [["arm", *(one.metric.title for one in found)]]
    for arm in study.arms:
        cells = [mean_cell(one.means.get(arm.name), one.metric.unit) for one in found]
        rows.append([arm.name + (" (baseline)" if arm.name == study.baseline else ""), *cells])
    return rows


def differences_table(study: Study, found: Sequence[Comparisons]) -> list[list[str]]:
    """The same for the differences from the baseline, of the metrics that are compared."""
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
    """What one metric says of the arms, sentence by sentence: no more than the intervals do."""
    metric, verdict = found.metric, found.verdict
    if verdict is None:
        return [f"No two arms have a result of the same seed: by {metric.title} nothing can be compared."]
    told = _left_out(verdict, n_arms - len(found.means), n_arms)
    if verdict.seeds == 1:
        return [
            f"With one seed, how much chance decides is not known: by {metric.title} no arm can be recommended. "
            f"{verdict.best} has the {_superlative(metric)} one.",
            *told,
        ]
    if verdict.worse:
        told.insert(0, f"{verdict.best} is better than {_named(verdict.worse, metric)}.")
    if verdict.level:
        told.append(_undecided(verdict, metric))
    head = f"{verdict.best} is recommended by {metric.title}"
    if not verdict.worse:
        head = f"By {metric.title} no arm can be recommended"
    elif verdict.level:
        others = _listed([one.other for one in verdict.level])
        head = f"By {metric.title}, {verdict.best} is recommended over some arms, but not over {others}"
    return [f"{head} ({verdict.seeds} seeds).", *told]


def _left_out(verdict: Verdict, absent: int, n_arms: int) -> list[str]:
    told = [f"{absent} of {n_arms} arms have no result and are left out."] if absent else []
    if verdict.left_out:
        one = len(verdict.left_out) == 1
        which = "1 seed" if verdict.seeds == 1 else f"{verdict.seeds} seeds"
        told.append(
            f"{_listed(verdict.left_out)} {'lacks' if one else 'lack'} results of the {which} by which the others are "
            f"compared, and {'is' if one else 'are'} left out."
        )
    return told


def _undecided(verdict: Verdict, metric: Metric) -> str:
    known = [f"{one.seeds:,} seeds for {one.other}" for one in verdict.level if one.seeds]
    more = [one.other for one in verdict.level if one.seeds is None and one.difference.sd and one.difference.mean]
    needed = [*known, *([f"more than {MOST_SEEDS:,} for {_listed(more)}"] if more else [])]
    text = (
        f"{verdict.best}, of the {_superlative(metric)} mean, cannot be told apart with {verdict.seeds} seeds from "
        f"{_named(verdict.level, metric)}."
    )
    if needed:
        text += (
            f" If means and spreads are as measured, it would take roughly {_listed(needed)} to do so with a chance of "
            f"{POWER:.0%}."
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
    """A table."""
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
