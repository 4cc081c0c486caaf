"""Report of a study: STUDY/report.html, report.md, report.json and the charts."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.files import atomic_writer, write_json
from evaluation.study import conclusion_text
from evaluation.study.loss_bands import Curve, chart, draw_losses, read_curves
from evaluation.study.step_timing import read_rounds, read_timing, steps_in_time
from evaluation.study.study_file import Budget, Study, children
from evaluation.study.study_results import Comparisons, StudyResults, compare, read_results
from pretrain.config import on_one_line
from pretrain.reporting.html_page import page

_SCRIPTS = ("page.js", "chart.js", "study.js")
Found = dict[Budget, tuple[StudyResults, list[Comparisons], list[Curve]]]


def write_study_report(folder: Path, study: Study) -> Path:
    """Write all files of the report from the finished runs. Return the path of the page.

    Raises:
        UserError: if a file cannot be written.
    """
    found: Found = {}
    for budget in study.budgets:
        results = read_results(folder, study, budget)
        found[budget] = results, compare(study, results), read_curves(folder, study, budget)
    arms = [arm.name for arm in study.arms]
    try:
        for budget, (_, _, curves) in found.items():
            draw_losses(curves, arms, folder / f"loss-{budget}.png", conclusion_text.BUDGET_TITLES[budget])
        write_json(folder / "report.json", as_json(folder, study, found))
        values = shown(folder, study, found)
        for name, text in (("report.md", markdown(values)), ("report.html", page(values, _SCRIPTS))):
            with atomic_writer(folder / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise UserError(f"{error.filename or folder}: the report cannot be written ({error.strerror})") from None
    return folder / "report.html"


def as_json(folder: Path, study: Study, found: Found) -> dict[str, Any]:
    """All results as JSON: values of each run by budget; means, differences, verdict and conclusions by metric."""
    return {
        "study": str(folder.absolute()),
        "baseline": study.baseline,
        "primary": study.primary,
        "seeds": study.seeds,
        "seconds_per_step": read_rounds(folder, study),
        "budgets": {
            budget: {
                "missing": results.missing,
                "values": results.values,
                "metrics": {one.metric.key: asdict(one) for one in comparisons},
                "conclusions": {key: said for key, _, said in conclusions(study, comparisons)},
            }
            for budget, (results, comparisons, _) in found.items()
        },
    }


def conclusions(study: Study, comparisons: list[Comparisons]) -> list[tuple[str, str, list[str]]]:
    """(metric, heading, sentences) of each compared metric, the primary one first."""
    compared = sorted(
        (one for one in comparisons if one.metric.better), key=lambda one: one.metric.key != study.primary
    )
    return [
        (
            one.metric.key,
            one.metric.title + (" (chosen before, to go by)" if one.metric.key == study.primary else ""),
            conclusion_text.conclusion(one, len(study.arms)),
        )
        for one in compared
    ]


def notices(folder: Path, study: Study, found: Found) -> list[str]:
    """Warnings at the top of the report."""
    missing = sorted({name for results, _, _ in found.values() for name in results.missing})
    said = []
    if missing:
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if missing[6:] else "")
        said.append(f"{len(missing)} of {len(children(study))} runs are not done, and are left out: {shown}.")
    return [*said, *_unsteady(read_rounds(folder, study))]


def _unsteady(rounds: dict[str, list[float]], most: float = 0.05) -> list[str]:
    """Warnings for arms whose timing rounds differ by more than the share `most`."""
    apart = {arm: max(seconds) / min(seconds) - 1 for arm, seconds in rounds.items()}
    return [
        f"{arm}: the timing rounds differ by {share:.0%}, so its number of steps at equal time has the same "
        "uncertainty."
        for arm, share in apart.items()
        if share > most
    ]


def markdown(page: dict[str, Any]) -> str:
    """The tables and conclusions of the page in Markdown."""
    parts = [f"# {page['name']}\n", f"{page['summary']}\n", *(f"> {text}\n" for text in page["notices"])]
    for section in page["sections"]:
        parts += [f"## {section['title']}\n", f"{section['explanation']}\n"]
        parts += [f"**{one['title']}.** {' '.join([one['text'], *one['more']])}\n" for one in section["conclusions"]]
        parts += [conclusion_text.markdown(section["means"]), f"Differences from {page['baseline']}:\n"]
        parts += [conclusion_text.markdown(section["differences"]), f"![Held-out loss](loss-{section['budget']}.png)\n"]
    return "\n".join([*parts, page["how"][0], "", page["how"][1], ""])


def summary(study: Study) -> str:
    """One-line summary of the study."""
    train, data, model = (study.config[section] for section in ("train", "data", "model"))
    return (
        f"{len(study.arms)} ways to mask, {study.seeds} seed{'s' * (study.seeds > 1)} each; {study.steps:,} steps of "
        f"{train['global_batch_size']} rows of {data['seq_len']} slots; {model['arch']} of {model['size']['layers']} "
        f"layers of {model['size']['hidden']}; baseline {study.baseline}."
    )


def explanation(folder: Path, study: Study, budget: Budget) -> str:
    """Explanation of the budget: equal tokens or equal time."""
    if budget == "tokens":
        return "All arms train for the same steps, and with the same seed on the same rows in the same order."
    seconds = read_timing(folder, study)
    if not seconds:
        return f"All arms train as long as {study.baseline} takes for {study.steps:,} steps."
    steps = steps_in_time(seconds, study.baseline, study.steps)
    each = ", ".join(f"{arm} {count:,}" for arm, count in steps.items())
    return (
        f"Each arm trains for as long as {study.baseline} takes for {study.steps:,} steps. The step times were "
        f"measured before the runs, and the learning rate decays over the steps of the arm: {each}."
    )


def shown(folder: Path, study: Study, found: Found) -> dict[str, Any]:
    """Contents of the page."""
    arms = [arm.name for arm in study.arms]
    titles = {budget: f"{conclusion_text.BUDGET_TITLES[budget]}: held-out loss, 15% token masks" for budget in found}
    return {
        "name": folder.absolute().name,
        "path": str(folder.absolute()),
        "time": time.time(),
        "baseline": study.baseline,
        "summary": summary(study),
        "notices": notices(folder, study, found),
        "charts": [chart(titles[budget], curves, arms) for budget, (_, _, curves) in found.items() if curves],
        "axes": {"tokens": [], "hours": []},  # each line has its own
        "marks": {},
        "counts": {},
        "sections": [_section(folder, study, budget, comparisons) for budget, (_, comparisons, _) in found.items()],
        "how": [conclusion_text.HOW, conclusion_text.YARDSTICK],
        "arms": [[arm.name, on_one_line(arm.masking)] for arm in study.arms],
    }


def _section(folder: Path, study: Study, budget: Budget, comparisons: list[Comparisons]) -> dict[str, Any]:
    return {
        "budget": budget,
        "title": conclusion_text.BUDGET_TITLES[budget],
        "explanation": explanation(folder, study, budget),
        "conclusions": [
            {"title": title, "text": text, "more": more, "primary": key == study.primary}
            for key, title, (text, *more) in conclusions(study, comparisons)
        ],
        "means": conclusion_text.means_table(study, comparisons),
        "differences": conclusion_text.differences_table(study, comparisons),
        "forests": [_forest(one) for one in comparisons if one.from_baseline],
    }


def _forest(one: Comparisons) -> dict[str, Any]:
    rows = [
        {"name": arm, "mean": found.mean, "interval": found.interval, "apart": found.told_apart}
        for arm, found in one.from_baseline.items()
    ]
    return {"title": one.metric.title, "unit": one.metric.unit, "better": one.metric.better, "rows": rows}
