"""One run of a study, from training to its figures: each part is skipped if its result is there and sound."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_prep.errors import UserError
from data_prep.files import sha256_file, write_json
from data_prep.reading import read_bytes, read_json
from launchers.study.commands import Maskwright, Stopped
from launchers.study.definition import Child, Study
from pretrain.run_folder import EXIT_CODES, RunFolder

_LOG_LINES = 3  # of a command that failed, in what is said of it


@dataclass(frozen=True)
class Record:
    """RUN/study.json: says that a run is done, and what its results were made of.

    Attributes:
        settings: the digest of `settings_of`. files: SHA-256 of the results, by name.
    """

    settings: str
    steps: int
    files: dict[str, str]


@dataclass(frozen=True)
class Place:
    """Files of a run of a study, beside those that training has there.

    record: what says that all is done, with what the results were made of; written last.
    """

    run: Path

    @property
    def log(self) -> Path:
        return self.run / "study.log"

    @property
    def evaluation(self) -> Path:
        return self.run / "evaluate.json"

    @property
    def finetuning(self) -> Path:
        return self.run / "finetune.json"

    @property
    def record(self) -> Path:
        return self.run / "study.json"


def is_done(folder: Path, study: Study, child: Child, steps: int | None) -> bool:
    """Whether the record says so, is of this study and these steps, and its results are as they were written."""
    place = Place(child.run(folder))
    record = _read_record(place)
    if steps is None or record is None or record.settings != settings_of(study, child, steps):
        return False
    return not _unsound(place, record)


def _read_record(place: Place) -> Record | None:
    """The record; None if it is missing, damaged, or names files that are not results of a run."""
    try:
        record: Record = read_json(place.record, Record)
    except UserError:
        return None
    results = {place.evaluation.name, place.finetuning.name}
    return record if record.files and results.issuperset(record.files) else None


def _unsound(place: Place, record: Record) -> list[Path]:
    """Results that are lost, are links, or are not as the record says."""
    return [place.run / name for name, digest in record.files.items() if not _has_digest(place.run / name, digest)]


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and sha256_file(path) == digest


def run_child(
    folder: Path, study: Study, child: Child, steps: int, maskwright: Maskwright, tell: Callable[[str, int], None]
) -> None:
    """Train, export, evaluate and, if asked for, fine-tune. Results that were altered since are made anew.

    Args:
        tell: called with what is being done, and the steps trained so far.

    Raises:
        UserError: if a command fails, or the folder holds a run that was another. Stopped: if somebody asked to stop.
    """
    place = Place(child.run(folder))
    if record := _read_record(place):
        if record.settings != settings_of(study, child, steps):
            raise UserError(f"{place.run} holds a run of another study, or of other steps; remove it")
        for path in _unsound(place, record):
            _remove(path)
        _remove(place.record)  # it does not describe the results that are made from here on
    _train(folder, study, child, steps, maskwright, tell)
    model = _export(place, steps, maskwright)
    results = [place.evaluation]
    if read_result(place.evaluation) is None:
        _remove(place.evaluation)
        tell("evaluation", steps)
        _measure(evaluate_words(study, model, place.evaluation), place.evaluation, place, maskwright)
    if study.finetune:
        tell("fine-tuning", steps)  # goes on with what its file has
        _measure(finetune_words(study, model, place.finetuning), place.finetuning, place, maskwright)
        results.append(place.finetuning)
    files = {path.name: sha256_file(path) for path in results}
    write_json(place.record, {"settings": settings_of(study, child, steps), "steps": steps, "files": files})


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be removed ({error.strerror}). Remove it.") from None


def _measure(words: list[str], out: Path, place: Place, maskwright: Maskwright) -> None:
    _check(maskwright(words, place.log), words, place)
    if read_result(out) is None:
        raise UserError(f"`maskwright {words[0]}` wrote no JSON to {out}; see {place.log}")


def settings_of(study: Study, child: Child, steps: int) -> str:
    """A digest of all that decides a run's results: 64 hexadecimals."""
    decides = [study.digest, child.budget, child.arm.name, child.seed, steps]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def read_result(path: Path) -> dict[str, Any] | None:
    """The JSON object of a result; None if the file is missing or damaged."""
    try:
        values: dict[str, Any] = read_json(path, dict[str, Any], nan=True)
    except UserError:
        return None
    return values


def train_words(folder: Path, study: Study, child: Child, steps: int) -> list[str]:
    """`maskwright train` of a run: the study's config, and what its arm, seed and budget change."""
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
    return [f"{key}={_on_one_line(value)}" for key, value in values.items()]


def evaluate_words(study: Study, model: Path, out: Path) -> list[str]:
    """`maskwright evaluate` of a model: the same held-out tokens and masks for every run; MLflow has the trainings."""
    pairs = ["--pairs", study.pairs] if study.pairs else []
    pairs += ["--limit", str(study.pairs_limit)] if study.pairs_limit else []
    return ["evaluate", str(model), "--data", study.data, *pairs, "--uri", "none", "--json", str(out)]


def finetune_words(study: Study, model: Path, out: Path) -> list[str]:
    """`maskwright finetune` of a model; MLflow has the trainings."""
    return ["finetune", str(model), *study.finetune, "--uri", "none", "--json", str(out)]


def _train(
    folder: Path, study: Study, child: Child, steps: int, maskwright: Maskwright, tell: Callable[[str, int], None]
) -> None:
    place = Place(child.run(folder))
    if _is_trained(place.run, steps):
        return
    tell("training", steps_done(place.run))
    words = train_words(folder, study, child, steps)
    code = maskwright(words, place.log, lambda: tell("training", steps_done(place.run)))
    if code == EXIT_CODES["stopped"]:
        raise Stopped(place.run)
    _check(code, words, place)
    if not _is_trained(place.run, steps):
        raise UserError(f"{place.run}: the training ended before step {steps}; see {place.log}")


def _export(place: Place, steps: int, maskwright: Maskwright) -> Path:
    """The model's folder, which appears whole or not at all."""
    model = place.run / "exports" / f"step-{steps:08d}"
    if not (model / "config.json").is_file():
        words = ["export", str(place.run), "--step", str(steps)]
        _check(maskwright(words, place.log), words, place)
    return model


def _is_trained(run: Path, steps: int) -> bool:
    try:
        status = RunFolder(run).read_status()
    except UserError:
        return False
    return status.state == "completed" and status.step == steps


def steps_done(run: Path) -> int:
    """As status.json says; 0 of a run that has not begun."""
    try:
        return RunFolder(run).recorded_status().step
    except UserError:
        return 0


def _check(code: int, words: list[str], place: Place) -> None:
    if code:
        raise UserError(f"`maskwright {words[0]}` ended with exit code {code}: {said_last(place.log)}")


def said_last(log: Path) -> str:
    """The last lines of the log of a command that failed, and where the rest is."""
    try:
        lines = read_bytes(log).decode(errors="replace").splitlines()[-_LOG_LINES:]
    except UserError:
        lines = []
    return f"{' / '.join(lines)} (all of it: {log})"


def _on_one_line(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
