"""Collect the content of a run's HTML page from its run folder, as one JSON value."""

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from data_prep.errors import UserError
from data_prep.folder_kinds import require_run
from data_prep.format import Dataset
from data_prep.format.token_frequencies import unigram_entropy
from data_prep.urls import is_url
from pretrain.reporting.curve_charts import averaged, axes_of, charts_of
from pretrain.reporting.event_timeline import breaks_of, marks_of, speeds, time_spent
from pretrain.reporting.page_tables import config_rows, fact_rows, read_config, stage_rows, starts_of
from pretrain.reporting.prediction_table import predictions_of, shown
from pretrain.reporting.run_summary import RunSummary, summarize
from pretrain.run import JournalTable, RunFolder, read_environment, read_journal_table
from pretrain.run.journal_table import journal_table_of

_MOST_TOKENS = 50_000_000  # of a data set whose tokens are counted for the page; this takes seconds


def collect(run: Path, out: Path) -> dict[str, Any]:
    """Collect the content of the page at `out`.

    Raises:
        UserError: if `run` is not a run folder.
    """
    folder = RunFolder(run)
    require_run(run)
    environment, config = read_environment(folder.environment) or {}, read_config(folder.config)
    measured = _measured(folder.journal)
    starts = starts_of(environment)
    breaks = breaks_of(measured, starts)
    spent = time_spent(measured, breaks, starts)
    speed = speeds(measured, spent)
    marks = marks_of(measured, breaks) | {"stage": _stage_marks(config, measured)}
    summary = summarize(run)
    page = summary.mlflow_page
    found = {
        "name": run.resolve().name,
        "path": str(run.resolve()),
        "time": time.time(),
        "version": environment.get("packages", {}).get("maskwright") or "",
        "status": _status(summary),
        "notices": _notices(measured, config, environment),
        "headline": _headline(measured, speed, _entropy(config.get("data.valid"))),
        "speeds": speed,
        "charts": charts_of(measured),
        "axes": axes_of(measured),
        "marks": marks,
        "counts": _counts(measured) | {"restart": sum(each.kind == "restart" for each in breaks)},
        "spent": spent,
        "predictions": predictions_of(folder.predictions, folder.tokenizer),
        "facts": [*fact_rows(config, environment), *([("MLflow", page)] if page else [])],
        "exports": _exports(folder.exports, out),
        "stages": stage_rows(config),
        "starts": _starts(environment),
        "config": config_rows(config),
    }
    return _clean(found)


def _status(summary: RunSummary) -> dict[str, Any]:
    steps = (summary.status.step, summary.status.total_steps) if summary.status else (0, 0)
    said = {"state": summary.state, "reason": summary.reason, "next_action": summary.next_action}
    return said | dict(zip(("step", "total_steps"), steps, strict=True))


def goodput_of(folder: RunFolder, most_bytes: int) -> float | None:
    """The share of all time since the run's first start that was spent on steps, without repeated ones.

    None if it is not known, or if the journal is longer than `most_bytes`: 1 GB takes 15 s of processor time.
    """
    if not folder.journal.exists() or folder.journal.stat().st_size > most_bytes:
        return None
    measured, starts = _measured(folder.journal), starts_of(read_environment(folder.environment) or {})
    return speeds(measured, time_spent(measured, breaks_of(measured, starts), starts)).get("goodput")


def _measured(journal: Path) -> JournalTable:
    try:
        return read_journal_table(journal)
    except OSError:
        return journal_table_of([])


def _notices(measured: JournalTable, config: dict[str, Any], environment: dict[str, Any]) -> list[str]:
    said = []
    if not len(measured.steps):
        said.append("This run has not recorded any step yet.")
    if measured.torn:
        lines = "1 line" if measured.torn == 1 else f"{measured.torn:,} lines"
        said.append(f"{lines} of journal.jsonl could not be read and {'is' if measured.torn == 1 else 'are'} left out.")
    if not config:
        said.append("config.yaml is missing or cannot be read, so the settings are not shown.")
    if not environment:
        said.append("environment.json is missing or cannot be read, so hosts and versions are not shown.")
    return said


def _entropy(place: Any) -> float | None:
    """Unigram entropy of the held-out data set in nats a token: the loss of the best prediction without context.

    None for a data set that is remote, has more than 50 million tokens, or cannot be read.
    """
    if not isinstance(place, str) or is_url(place):
        return None
    try:
        dataset = Dataset(Path(place))
        return unigram_entropy(dataset) if 0 < dataset.manifest.totals.tokens <= _MOST_TOKENS else None
    except (UserError, OSError):
        return None


def _headline(measured: JournalTable, speed: dict[str, float], entropy: float | None) -> list[tuple[str, float, str]]:
    """(name, value, unit) of the numbers at the top of the page."""
    found = []
    losses = averaged(measured.series("train/loss").values)
    for name, values, unit in (
        ("training loss, average", losses, "nats"),
        ("held-out loss", measured.series("eval/loss").values, "nats"),
        ("unigram entropy of held-out text", np.array([] if entropy is None else [entropy]), "nats"),
        ("held-out accuracy", measured.series("eval/masked_accuracy").values, "share"),
    ):
        values = values[np.isfinite(values)]
        if len(values):
            found.append((name, float(values[-1]), unit))
    for name, key, unit in (
        ("real tokens seen", "tokens", "count"),
        ("real tokens/s", "tokens_per_second", "count"),
        ("MFU", "mfu", "share"),
        ("goodput", "goodput", "share"),
    ):
        if key in speed:
            found.append((name, speed[key], unit))
    return found


def _counts(measured: JournalTable) -> dict[str, int]:
    """Number of marks by kind, as the page may show only some of them."""
    named = {"skipped": "train/skipped", "spike": "train/spike", "checkpoint": "checkpoint/seconds"}
    return {kind: len(measured.series(name).steps) for kind, name in named.items()}


def _stage_marks(config: dict[str, Any], measured: JournalTable) -> list[dict[str, Any]]:
    """Steps at which later stages of the curriculum began, up to the last step of the run."""
    last = int(measured.steps.max()) if len(measured.steps) else 0
    return [{"step": stage["after_step"]} for stage in stage_rows(config)[1:] if stage.get("after_step", last) < last]


def _exports(exports: Path, out: Path) -> list[dict[str, str]]:
    """Exported models, with links relative to the page."""
    folders = (
        sorted(path for path in exports.iterdir() if path.is_dir() and path.name[0] != ".") if exports.is_dir() else []
    )
    base = out.resolve().parent
    return [{"name": path.name, "link": "./" + quote(os.path.relpath(path.resolve(), base))} for path in folders]


def _starts(environment: dict[str, Any]) -> list[dict[str, Any]]:
    every = [environment, *environment.get("earlier_starts", [])] if environment else []
    return [
        {
            "when": one.get("time", ""),
            "after_step": one.get("after_step", ""),
            "processes": one.get("processes", ""),
            "hosts": ", ".join(host.get("host", "") for host in one.get("hosts", [])),
            "code": (one.get("git_commit") or "")[:12],
        }
        for one in every
        if isinstance(one, dict)
    ]


def _clean(value: Any) -> Any:
    """The value with only JSON types: text without control characters, and None for numbers that are not finite."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {str(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
