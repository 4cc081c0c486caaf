"""Sections of the model card of a published model, from its run folder: data, recipe, losses, hardware, limits."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any

import numpy as np
import yaml

from data_prep.common.errors import UserError, one_line
from data_prep.common.urls import file_name, is_url, redact, require_trust, shown
from data_prep.format import Dataset
from pretrain.config import Config, load_run_config, on_one_line
from pretrain.run import JournalTable, RunFolder

_CURVE_POINTS = 10
_SOURCES = 20
_PRIVATE: Any = {"run": {"dir", "resume"}, "track": True, "cluster": True, "checkpoint": True}


def training_sections(
    folder: RunFolder,
    step: int,
    watts: float | None,
    licences: Sequence[tuple[str, str]] = (),
    trust_folder: bool = False,
) -> str:
    """The sections on the training of a checkpoint, as Markdown. They name no folder, host or user.

    Args:
        step: of the checkpoint. Later steps of the run are left out.
        watts: power of one GPU, or of one machine without GPUs, for the estimate of the energy.
        licences: see licence_table.
        trust_folder: read also data sets on other machines, whose addresses the folder names.

    Raises:
        UserError: if the run's config cannot be read, or a data set is on another machine, without `trust_folder`.
        OSError: if its journal cannot be read.
    """
    config, table, starts = load_run_config(folder.config), JournalTable.read(folder.journal), _starts(folder, step)
    parts = {
        "Training data": f"{_data(folder, starts, trust_folder)}\n{licence_table(licences)}",
        "Recipe": _recipe(config, step),
        "Loss": _losses(table, step),
        "Hardware and energy": _hardware(table, starts, step, watts),
        "Reproduce": _reproduction(config, starts),
        "Limits": _limits(config, step),
    }
    return "\n".join(f"## {title}\n\n{text}" for title, text in parts.items() if text)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, with its final newline. Cells are plain text of one line, or a word in backticks."""
    lines = [head, ["---"] * len(head), *rows]
    cells = (
        [str(cell) if re.fullmatch(r"`[\w ]*`", str(cell)) else plain_text(str(cell)) for cell in line]
        for line in lines
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def plain_text(text: str) -> str:
    """Text of others as one line of Markdown that shows it: no HTML, link, image or heading."""
    return re.sub(r"[\\`<>\[\]|!]", r"\\\g<0>", one_line(text))


def licence_table(licences: Sequence[tuple[str, str]]) -> str:
    """A table of the licences of the text that the publisher states, as (source or "all text", licence)."""
    if not licences:
        return "The licences of the text are not stated.\n"
    return markdown_table(("text", "licence, as stated by the publisher"), licences)


def _starts(folder: RunFolder, step: int) -> list[dict[str, Any]]:
    """The recorded starts of the run before this step, the newest first; none if environment.json is missing."""
    newest = folder.read_environment()
    found = [newest, *newest.get("earlier_starts", [])] if newest else []
    return [start for start in found if start.get("after_step", 0) < step]


def _data(folder: RunFolder, starts: list[dict[str, Any]], trust_folder: bool) -> str:
    data = starts[0].get("data", []) if starts else []
    if not trust_folder:
        require_trust([one.get("location") for one in data], folder.environment)
    rows = [
        (one.get("name"), f"{one.get('documents', 0):,}", f"{one.get('tokens', 0):,}", f"`{one.get('fingerprint')}`")
        for one in data
    ]
    text = markdown_table(("data set", "documents", "tokens", "fingerprint"), rows) if rows else ""
    sources = _sources({one.get("location"): one.get("fingerprint") for one in data})
    if sources:
        text += "\n" + markdown_table(("source of the text", "documents", "tokens"), sources)
    return text


def _sources(fingerprints: dict[Any, Any]) -> list[tuple[str, str, str]]:
    """Documents and tokens of the largest sources, of those data sets that are still there and the same."""
    documents: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for location, fingerprint in fingerprints.items():
        try:
            manifest = Dataset(str(location)).manifest
        except UserError:
            continue
        for one in manifest.sources if manifest.fingerprint == fingerprint else ():
            name = one.source or (redact(shown(one.name)) if is_url(one.name) else file_name(one.name))
            documents[name] += one.documents
            tokens[name] += one.tokens
    rows = [(name, f"{documents[name]:,}", f"{count:,}") for name, count in tokens.most_common(_SOURCES)]
    rest = sum(tokens.values()) - sum(count for _, count in tokens.most_common(_SOURCES))
    return [*rows, ("others", "", f"{rest:,}")] if rest else rows


def _recipe(config: Config, step: int) -> str:
    rows = []
    for phase in config.run_phases:
        if phase.start < step:
            one, schedule = phase.config, phase.config.schedule
            settings = f"{schedule.kind}, {schedule.warmup_steps:,} warm-up steps"
            batch = f"{one.train.global_batch_size:,} x {one.data.seq_len:,}"
            steps = f"{phase.start + 1:,} to {min(phase.end, step):,}"
            name = phase.name or "all"
            rows.append((name, steps, one.objective_text, batch, one.optim.name, f"{one.optim.lr:g}", settings))
    head = ("phase", "steps", "objective", "rows x tokens", "optimizer", "peak learning rate", "schedule")
    return f"{markdown_table(head, rows)}\nPrecision: {config.train.precision}. Seed: {config.run.seed}.\n"


def _losses(table: JournalTable, step: int) -> str:
    train, valid = table.series("train/loss"), table.series("eval/loss")
    done = train.steps <= step
    steps, losses = train.steps[done], train.values[done]
    if not len(steps):
        return ""
    rows = []
    for part in np.array_split(np.arange(len(steps)), min(_CURVE_POINTS, len(steps))):
        known = np.searchsorted(valid.steps, steps[part[-1]], side="right")
        held_out = f"{valid.values[known - 1]:.4f}" if known else ""
        rows.append((f"{steps[part[-1]]:,}", f"{losses[part].mean():.4f}", held_out))
    note = "\nMeans since the line before, and the last held-out loss up to the step, in nats.\n"
    return markdown_table(("step", "training loss", "held-out loss"), rows) + note


def _hardware(table: JournalTable, starts: list[dict[str, Any]], step: int, watts: float | None) -> str:
    """The hours of each kind of hardware. A start's steps are those that the journal has from its time to the next."""
    timed = sorted((_unix(start["time"]), start) for start in starts if _unix(start.get("time")) is not None)
    if not timed:
        return ""
    lines = table.trained[table.steps[table.trained] <= step]
    begun = np.array([time for time, _ in timed])
    owner = np.maximum(np.searchsorted(begun, table.times[lines], side="right") - 1, 0)
    hours: dict[tuple[str, str], float] = {}
    for number, (_, start) in enumerate(timed):
        name, unit, devices = _devices(start)
        seconds = float(table.seconds[lines][owner == number].sum())
        hours[name, unit] = hours.get((name, unit), 0.0) + devices * seconds / 3600
    rows = [(name, f"{count:.3g} {unit} hours") for (name, unit), count in hours.items()]
    text = markdown_table(("hardware", "training steps took"), rows)
    if watts:
        energy = f"{sum(hours.values()) * watts / 1000:.3g} kWh"
        text += f"\nEstimated energy: {energy}. It is the hours times {watts:g} watts, and was not measured.\n"
    return text


def _unix(time: Any) -> float | None:
    try:
        return datetime.strptime(str(time), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


def _devices(start: dict[str, Any]) -> tuple[str, str, int]:
    """The hardware of a start in words, the unit of its hours, and how many of these it used."""
    hosts = start.get("hosts", [])
    used = Counter(
        host["gpus"][0].get("name", "GPU") if host.get("gpus") else host.get("processor", "CPU") for host in hosts
    )
    on_gpus = any(host.get("gpus") for host in hosts)
    count = start.get("processes", 1) if on_gpus else max(1, len(hosts))
    unit = "GPU" if on_gpus else "machine"
    return f"{count} {unit}{'s' * (count > 1)}: {', '.join(used) or 'unknown'}", unit, count


def _reproduction(config: Config, starts: list[dict[str, Any]]) -> str:
    values = _without_places(config.model_dump(mode="json", exclude_defaults=True, exclude=_PRIVATE))
    values["run"] = {"dir": "runs/reproduction"} | values.get("run", {})
    text = "Save this as `config.yaml`, set the places of the data, and run `maskwright train config.yaml`.\n"
    settings = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", settings)), default=0))  # no text of the settings ends it
    text += f"\n{fence}yaml\n{settings}{fence}\n"
    if starts:
        packages = {name: version for name, version in starts[0].get("packages", {}).items() if version}
        versions = f"Python {starts[0].get('python')}, {on_one_line(packages).strip('{}')}"
        text += f"\nVersions: {plain_text(versions)}.\n"
        text += f"Processes: {starts[0].get('processes')}. Equal batches and masks follow from the seed and the data.\n"
    return text


def _without_places(value: Any) -> Any:
    """The values of a config with the last two parts of absolute paths, and URLs without secrets."""
    if isinstance(value, dict):
        return {key: _without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_places(one) for one in value]
    if not isinstance(value, str):
        return value
    return "/".join(PurePath(value).parts[1:][-2:]) if value.startswith("/") else redact(shown(value))


def _limits(config: Config, step: int) -> str:
    found = []
    if step < config.train.steps:
        found.append(f"Training was not complete: this is step {step:,} of {config.train.steps:,}.")
    lengths = sorted({stage.seq_len for stage in config.stages if stage.after_step < step})
    found.append(f"It saw no text of more than {lengths[-1]:,} tokens at once.")
    found.append("It repeats what is common in its training text, errors and prejudice included.")
    found.append("It was trained to predict tokens, not to answer questions or to state facts.")
    return "".join(f"- {one}\n" for one in found)
