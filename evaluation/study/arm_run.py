"""One run of a study: train, export, evaluate, fine-tune. Parts with an intact result are skipped."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.files import sha256_file, write_json
from data_prep.reading import read_bytes, read_json
from evaluation.study.command_runner import Maskwright, Stopped
from evaluation.study.study_file import Child, Study
from pretrain.config import on_one_line
from pretrain.run import EXIT_CODES, RunFolder

EVALUATION, FINETUNING, RECORD, LOG = "evaluate.json", "finetune.json", "study.json", "study.log"
"""Files that a study adds to a run folder. The record marks a finished run and is written last."""
_LOG_LINES = 3  # of a failed command, quoted in the error message


@dataclass(frozen=True)
class Record:
    """RUN/study.json: marks a finished run and identifies its results.

    Attributes:
        settings: the digest of `settings_of`. files: SHA-256 of the results, by name.
    """

    settings: str
    steps: int
    files: dict[str, str]


def is_done(folder: Path, study: Study, child: Child, steps: int | None) -> bool:
    """Whether the run has a record of this study and number of steps, and unchanged results."""
    run = child.run(folder)
    record = _read_record(run)
    if steps is None or record is None or record.settings != settings_of(study, child, steps):
        return False
    return not _altered(run, record)


def _read_record(run: Path) -> Record | None:
    """Read the record; None if it is missing, damaged, or names files that are not results."""
    try:
        record: Record = read_json(run / RECORD, Record)
    except UserError:
        return None
    return record if record.files and {EVALUATION, FINETUNING}.issuperset(record.files) else None


def _altered(run: Path, record: Record) -> list[Path]:
    """Results that are missing, are links, or differ from the record."""
    paths = {run / name: digest for name, digest in record.files.items()}
    return [
        path for path, digest in paths.items() if path.is_symlink() or not path.is_file() or sha256_file(path) != digest
    ]


def run_child(
    folder: Path, study: Study, child: Child, steps: int, maskwright: Maskwright, tell: Callable[[str, int], None]
) -> None:
    """Train, export, evaluate and, if configured, fine-tune. Altered results are computed again.

    Args:
        tell: called with the current task and the steps trained so far.

    Raises:
        UserError: if a command fails, or the folder holds a different run. Stopped: after a request to stop.
    """
    run, settings = child.run(folder), settings_of(study, child, steps)
    if record := _read_record(run):
        if record.settings != settings:
            raise UserError(f"{run} holds a run of another study, or of other steps; remove it")
        for path in (*_altered(run, record), run / RECORD):  # the record is invalid from here on
            _remove(path)
    if not _is_trained(run, steps):
        _train(folder, study, child, steps, maskwright, tell)
    model = run / "exports" / f"step-{steps:08d}"  # the export is atomic
    if not (model / "config.json").is_file():
        _call(["export", str(run), "--step", str(steps)], run, maskwright)
    results = [run / EVALUATION]
    if read_result(results[0]) is None:
        _remove(results[0])
        tell("evaluation", steps)
        _call(evaluate_words(study, model, results[0]), run, maskwright, results[0])
    if study.finetune:
        tell("fine-tuning", steps)  # resumes from its file
        results.append(run / FINETUNING)
        _call(finetune_words(study, model, results[1]), run, maskwright, results[1])
    files = {path.name: sha256_file(path) for path in results}
    write_json(run / RECORD, {"settings": settings, "steps": steps, "files": files})


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be removed ({error.strerror}). Remove it.") from None


def _call(words: list[str], run: Path, maskwright: Maskwright, result: Path | None = None) -> None:
    """Run a command. If `result` is given, the command must write JSON to it."""
    _check(maskwright(words, run / LOG), words, run)
    if result and read_result(result) is None:
        raise UserError(f"`maskwright {words[0]}` wrote no JSON to {result}; see {run / LOG}")


def _check(code: int, words: list[str], run: Path) -> None:
    if code:
        raise UserError(f"`maskwright {words[0]}` ended with exit code {code}: {said_last(run / LOG)}")


def settings_of(study: Study, child: Child, steps: int) -> str:
    """Digest of everything that determines a run's results: 64 hexadecimal digits."""
    decides = [study.digest, child.budget, child.arm.name, child.seed, steps]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the JSON object of a result; None if the file is missing or damaged."""
    try:
        values: dict[str, Any] = read_json(path, dict[str, Any], nan=True)
    except UserError:
        return None
    return values


def train_words(folder: Path, study: Study, child: Child, steps: int) -> list[str]:
    """`maskwright train` arguments of a run: the study's config with overrides for arm, seed and budget."""
    name = folder.absolute().name[:200]
    values = {
        "run.dir": str(child.run(folder)),
        "run.seed": child.seed,
        "run.resume": "auto",
        "train.steps": steps,
        "masking": child.arm.masking,
        "eval.masks": "common",
        "track.parent": name if child.budget == "tokens" else f"{name}, equal time",
    }
    return ["train", str(folder / "config.yaml"), *overrides(values), "--procs", str(study.processes)]


def overrides(values: dict[str, Any]) -> list[str]:
    """`section.key=value` for each value, in YAML on one line."""
    return [f"{key}={on_one_line(value)}" for key, value in values.items()]


def evaluate_words(study: Study, model: Path, out: Path) -> list[str]:
    """`maskwright evaluate` arguments. Every run has the same held-out tokens and masks. MLflow: training runs only."""
    pairs = ["--pairs", study.pairs] if study.pairs else []
    pairs += ["--limit", str(study.pairs_limit)] if study.pairs_limit else []
    return ["evaluate", str(model), "--data", study.data, *pairs, "--uri", "none", "--json", str(out)]


def finetune_words(study: Study, model: Path, out: Path) -> list[str]:
    """`maskwright finetune` arguments. MLflow: training runs only."""
    return ["finetune", str(model), *study.finetune, "--uri", "none", "--json", str(out)]


def _train(
    folder: Path, study: Study, child: Child, steps: int, maskwright: Maskwright, tell: Callable[[str, int], None]
) -> None:
    run, words = child.run(folder), train_words(folder, study, child, steps)

    def look() -> None:
        tell("training", steps_done(run))

    look()
    code = maskwright(words, run / LOG, look)
    if code == EXIT_CODES["stopped"]:
        raise Stopped(run)
    _check(code, words, run)
    if not _is_trained(run, steps):
        raise UserError(f"{run}: the training ended before step {steps}; see {run / LOG}")


def _is_trained(run: Path, steps: int) -> bool:
    try:
        status = RunFolder(run).read_status()
    except UserError:
        return False
    return status.state == "completed" and status.step == steps


def steps_done(run: Path) -> int:
    """Steps recorded in status.json; 0 if the run has not started."""
    try:
        return RunFolder(run).recorded_status().step
    except UserError:
        return 0


def said_last(log: Path) -> str:
    """Last lines of the log of a failed command, and the path of the log."""
    try:
        lines = read_bytes(log).decode(errors="replace").splitlines()[-_LOG_LINES:]
    except UserError:
        lines = []
    return f"{' / '.join(lines)} (log: {log})"
