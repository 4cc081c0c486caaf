"""The content of a run's HTML page, from its run folder, as one JSON value. Missing and damaged values are left out."""

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from data_prep.common.errors import UserError
from data_prep.storage import require_run
from pretrain.config import Config
from pretrain.config_files import flat, on_one_line, read_yaml
from pretrain.reporting.curve_charts import averaged, axes_of, charts_of, evenly, rounded
from pretrain.reporting.divergence import divergence
from pretrain.reporting.event_timeline import Start, breaks_of, marks_of, speeds, time_spent
from pretrain.reporting.prediction_table import predictions_of, printable_text
from pretrain.reporting.run_summary import summarize
from pretrain.run import JournalTable, RunFolder

MOST_MARKS = 500  # of a kind; more would overlap


def collect(run: Path, out: Path) -> dict[str, Any]:
    """Collect the content of the page at `out`; its value "diverged" comes from `divergence`.

    Raises UserError if `run` is not a run folder.
    """
    folder = RunFolder(run)
    require_run(run)
    environment, config = folder.read_environment() or {}, read_config(folder.config)
    try:
        measured = JournalTable.read(folder.journal)
    except OSError:
        measured = JournalTable.of([])
    starts = starts_of(environment)
    breaks = breaks_of(measured, starts)
    spent = time_spent(measured, breaks, starts)
    speed = speeds(measured, spent)
    marks = marks_of(measured, breaks) | {"phase": _phase_marks(config, measured)}
    summary = summarize(run)
    diverged = divergence(measured, environment.get("vocabulary_size"))
    status = {"state": summary.state, "reason": summary.reason, "next_action": summary.next_action}
    steps = (summary.status.step, summary.status.total_steps) if summary.status else (0, 0)
    values = {
        "name": run.resolve().name,
        "path": str(run.resolve()),
        "time": time.time(),
        "version": environment.get("packages", {}).get("maskwright") or "",
        "status": status | dict(zip(("step", "total_steps"), steps, strict=True)),
        "diverged": diverged,
        "notices": _notices(measured, config, environment, diverged),
        "result": _result(measured, environment, spent),
        "headline": _headline(measured, speed),
        "speeds": speed,
        "charts": charts_of(measured),
        "axes": axes_of(measured),
        "marks": {kind: evenly(of_kind, MOST_MARKS) for kind, of_kind in marks.items()},
        "counts": {kind: len(of_kind) for kind, of_kind in marks.items()},
        "spent": spent,
        "predictions": predictions_of(folder.predictions, folder.tokenizer),
        "facts": fact_rows(config, environment, summary.mlflow_page),
        "exports": _exports(folder.exports, out),
        "config": config_rows(config),
    }
    return _clean(values)


def _notices(
    measured: JournalTable, config: dict[str, Any], environment: dict[str, Any], diverged: str | None
) -> list[str]:
    notices = [f"The run diverged: {diverged}."] if diverged else []
    notices += environment.get("warnings", [])
    if not len(measured.steps):
        notices.append("This run has not recorded any step yet.")
    if measured.torn:
        notices.append(f"Damaged lines of journal.jsonl are left out: {measured.torn:,}.")
    if not config:
        notices.append("config.yaml is missing or cannot be read, so the settings are not shown.")
    if not environment:
        notices.append("environment.json is missing or cannot be read, so hosts and versions are not shown.")
    return notices


def _headline(measured: JournalTable, speed: dict[str, float]) -> list[tuple[str, float, str]]:
    """(name, value, unit) of the numbers at the top of the page."""
    numbers = []
    for name, values, unit in (
        ("training loss, moving average", averaged(measured.series("train/loss", abandoned=False).values), "nats"),
        ("held-out loss", measured.series("eval/loss", abandoned=False).values, "nats"),
        ("held-out accuracy", measured.series("eval/masked_accuracy", abandoned=False).values, "share"),
    ):
        values = values[np.isfinite(values)]
        if len(values):
            numbers.append((name, rounded(values[-1]), unit))
    for name, key, unit in (
        ("real tokens seen", "tokens", "count"),
        ("real tokens/s, mean of all steps", "tokens_per_second", "count"),
        ("MFU", "mfu", "share"),
        ("goodput: time in steps that count", "goodput", "share"),
    ):
        if key in speed:
            numbers.append((name, rounded(speed[key]), unit))
    return numbers


def _result(measured: JournalTable, environment: dict[str, Any], spent: dict[str, float]) -> dict[str, Any]:
    """The first line of the page: the last loss, the loss of a model that knows only how frequent tokens are, begin and
    duration in seconds. None: not known."""
    for name, metric in (("Held-out", "eval/loss"), ("Training", "train/loss")):
        values = measured.series(metric, abandoned=False).values
        values = (values if name == "Held-out" else averaged(values))[np.isfinite(values)]
        if len(values):
            known, seconds = environment.get("unigram_loss"), sum(spent.values())
            unigram = rounded(known) if known and name == "Held-out" else None
            begun = float(measured.times.max()) - seconds
            return {"name": name, "loss": rounded(values[-1]), "unigram": unigram, "begun": begun, "seconds": seconds}
    return {}


def _phase_marks(config: dict[str, Any], measured: JournalTable) -> list[dict[str, Any]]:
    """Steps after which later phases of the run began, up to its last step, with their names."""
    last = int(measured.steps.max()) if len(measured.steps) else 0
    phases = config.get("phases")
    marks, step = [], 0
    for phase in phases if type(phases) is list else []:
        if type(phase) is not dict or type(phase.get("steps")) is not int:
            break
        if 0 < step < last:
            marks.append({"step": step, "name": f"phase {phase.get('name')}"})
        step += phase["steps"]
    return marks


def _exports(exports: Path, out: Path) -> list[dict[str, str]]:
    """Exported models, with links relative to the page."""
    paths = exports.iterdir() if exports.is_dir() else ()
    folders = sorted(path for path in paths if path.is_dir() and path.name[0] != ".")
    base = out.resolve().parent
    return [{"name": path.name, "link": "./" + quote(os.path.relpath(path.resolve(), base))} for path in folders]


def _clean(value: Any) -> Any:
    """The value without control characters in its texts."""
    if isinstance(value, str):
        return printable_text(value)
    if isinstance(value, dict):
        return {str(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(inner) for inner in value]
    return value


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run by key, such as "train.steps": 800; empty if it cannot be read."""
    try:
        found = read_yaml(path)
        is_json = orjson.loads(orjson.dumps(found, option=orjson.OPT_PASSTHROUGH_DATETIME)) == found
    except (UserError, TypeError):  # orjson raises TypeError for a type that JSON lacks
        return {}
    return flat(found) if is_json else {}


def config_rows(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Each key of a config with its value as YAML and its default; None if it has no default or the value equals it."""
    required = {"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 1}}
    defaults = flat(Config.model_validate(required).model_dump(mode="json"))
    rows = []
    for key, value in values.items():
        changed = key in flat(required) or key not in defaults or defaults[key] != value
        default = _text(defaults[key]) if changed and key in defaults and key not in flat(required) else None
        rows.append({"key": key, "value": _text(value), "default": default, "changed": changed})
    return rows


def starts_of(environment: dict[str, Any]) -> list[Start]:
    """All known starts, the first one first."""
    every = [environment, *environment.get("earlier_starts", [])][::-1] if environment else []
    return [Start(start.get("after_step", 0), _unix(start.get("time"))) for start in every]


def _unix(text: Any) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (TypeError, ValueError):
        return None


def fact_rows(config: dict[str, Any], environment: dict[str, Any], page: str | None) -> list[tuple[str, str]]:
    """Names and values of what the config does not say. page: of the run in MLflow."""
    packages, count = environment.get("packages") or {}, environment.get("parameters")
    rows = [
        ("Model", f"{_text(config.get('model.arch', ''))}{f', {count:,} parameters' if count else ''}"),
        ("Data", "\n".join(map(_data_set, environment.get("data", []))) or _text(config.get("data.train", ""))),
        ("Processes", ", ".join(str(environment[name]) for name in ("processes", "backend") if name in environment)),
        ("Hosts", "\n".join(map(_host, environment.get("hosts", [])))),
        ("Job", ", ".join(f"{name} {value}" for name, value in (environment.get("slurm") or {}).items())),
        ("Code", _code(environment)),
        ("Packages", ", ".join(f"{name} {value}" for name, value in packages.items() if value)),
        ("Python", environment.get("python", "")),
        ("Command", environment.get("command", "")),
        ("MLflow", page or ""),
    ]
    return [(name, value) for name, value in rows if value]


def _data_set(found: dict[str, Any]) -> str:
    counts = f"{found.get('documents', 0):,} documents, {found.get('tokens', 0):,} tokens"
    return f"{found.get('location', '')}: {counts}, fingerprint {str(found.get('fingerprint', ''))[:16]}"


def _host(host: dict[str, Any]) -> str:
    ranks = host.get("ranks") or []
    gpus = [gpu.get("name", "") for gpu in host.get("gpus", [])]
    what = f"{len(gpus)} × {gpus[0]}" if gpus else f"{host.get('processor', '')}, {host.get('cores', '?')} cores"
    return f"{host.get('host', '')}: {len(ranks)} process{'' if len(ranks) == 1 else 'es'}, {what}"


def _code(environment: dict[str, Any]) -> str:
    commit = environment.get("git_commit")
    return f"commit {commit[:12]}{' with changes' if environment.get('git_changes') else ''}" if commit else ""


def _text(value: Any) -> str:
    """A config value on one line."""
    return value if isinstance(value, str) else on_one_line(value)
