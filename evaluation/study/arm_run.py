"""One run of a study: train, export, evaluate and fine-tune by `maskwright` commands. Intact results are skipped."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from data_prep.errors import UserError
from data_prep.files import sha256_file, write_json
from data_prep.processes import die_with_parent
from data_prep.reading import read_bytes, read_json
from evaluation.study.study_file import Study, StudyRun, runs_of
from pretrain.config import on_one_line
from pretrain.run import EXIT_CODES, RunFolder

EVALUATION, FINETUNING, RECORD, LOG = "evaluate.json", "finetune.json", "study.json", "study.log"
"""Files that a study adds to a run folder. The record marks a finished run and is written last."""
POLL_SECONDS = 1.0
PROGRAM = (sys.executable, "-m", "launchers.cli")
_LOG_LINES = 3  # of a failed command, quoted in the error message


class Stopped(Exception):
    """A study or one of its runs received a request to stop, and the running command has exited cleanly.

    Args:
        run: the run that received the request; None: the study.
    """

    def __init__(self, run: Path | None = None) -> None:
        super().__init__()
        self.run = run


class Maskwright(Protocol):
    """Run `maskwright WORDS` and return the exit code. Call `look` every second while the command runs."""

    def __call__(self, words: Sequence[str], log: Path, look: Callable[[], None] = ...) -> int: ...


@contextlib.contextmanager
def child_commands(
    on_stop: Callable[[Callable[[int], None]], AbstractContextManager[None]], program: Sequence[str] = PROGRAM
) -> Iterator[Maskwright]:
    """Yield a function that runs commands as child processes, one at a time, with their output in a log file.

    A stop request goes to the running command. After it, the function raises Stopped and starts no more commands.

    Args:
        on_stop: returns a context manager that calls a function with the number of each stop signal.
    """
    child: subprocess.Popen[bytes] | None = None
    requests: list[int] = []

    def stop(number: int) -> None:
        if not requests and child and child.poll() is None:
            child.terminate()
        requests.append(number)

    def run(words: Sequence[str], log: Path, look: Callable[[], None] = lambda: None) -> int:
        nonlocal child
        if requests:
            raise Stopped
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            child = subprocess.Popen(
                [*program, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that only this process forwards Ctrl-C, once
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )
            if requests:  # the request arrived before the process started
                child.terminate()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(POLL_SECONDS)
                    break
                look()
        if requests:
            raise Stopped
        return code

    with on_stop(stop):
        yield run


@dataclass(frozen=True)
class _Record:
    """RUN/study.json: marks a finished run. settings: see `_settings`. files: SHA-256 of the results, by name."""

    settings: str
    steps: int
    files: dict[str, str]


def unfinished(folder: Path, study: Study) -> list[int]:
    """Numbers of the unfinished runs, from 1."""
    return [number for number, run in enumerate(runs_of(folder, study), 1) if not is_done(study, run)]


def is_done(study: Study, run: StudyRun) -> bool:
    """Whether the run has a record of this study and number of steps, and unchanged results."""
    record = _read_record(run.folder)
    return record is not None and record.settings == _settings(study, run) and not _altered(run.folder, record)


def _settings(study: Study, run: StudyRun) -> str:
    """Digest of everything that determines a run's results: 64 hexadecimal digits."""
    decides = [study.digest, run.budget, run.arm.name, run.seed, run.steps]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def _read_record(folder: Path) -> _Record | None:
    """Read the record; None if it is missing, damaged, or names files that are not results."""
    try:
        record: _Record = read_json(folder / RECORD, _Record)
    except UserError:
        return None
    return record if record.files and {EVALUATION, FINETUNING}.issuperset(record.files) else None


def _altered(folder: Path, record: _Record) -> list[Path]:
    """Results that are missing, are links, or differ from the record."""
    paths = {folder / name: digest for name, digest in record.files.items()}
    return [
        path for path, digest in paths.items() if path.is_symlink() or not path.is_file() or sha256_file(path) != digest
    ]


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the JSON object of a result; None if the file is missing or damaged."""
    try:
        values: dict[str, Any] = read_json(path, dict[str, Any], nan=True)
    except UserError:
        return None
    return values


def do_run(
    folder: Path, study: Study, run: StudyRun, maskwright: Maskwright, report: Callable[[str, int], None]
) -> None:
    """Train, export, evaluate and, if configured, fine-tune. Altered results are computed again.

    Every run is evaluated on the same held-out tokens and masks. Only training runs go to MLflow.

    Args:
        report: called with the current task and the steps trained so far.

    Raises UserError if a command fails, or the folder holds a different run, and Stopped after a request to stop.
    """
    settings, log = _settings(study, run), run.folder / LOG
    assert run.steps is not None
    if record := _read_record(run.folder):
        if record.settings != settings:
            raise UserError(f"{run.folder} holds a run of another study, or of other steps; remove it")
        for path in (*_altered(run.folder, record), run.folder / RECORD):  # the record is invalid from here on
            _remove(path)
    if not _is_trained(run):
        _train(folder, study, run, maskwright, report)
    model = RunFolder(run.folder).export_of(run.steps)  # the export is atomic
    if not (model / "config.json").is_file():
        call(maskwright, ["export", str(run.folder), "--step", str(run.steps)], log)
    results = [run.folder / EVALUATION]
    if read_result(results[0]) is None:
        _remove(results[0])
        report("evaluation", run.steps)
        pairs = ["--pairs", study.pairs] if study.pairs else []
        pairs += ["--limit", str(study.pairs_limit)] if study.pairs_limit else []
        _measure(maskwright, ["evaluate", str(model), "--data", study.data, *pairs], results[0], log)
    if study.finetune:
        report("fine-tuning", run.steps)  # resumes from its file
        results.append(run.folder / FINETUNING)
        _measure(maskwright, ["finetune", str(model), *study.finetune], results[1], log)
    files = {path.name: sha256_file(path) for path in results}
    write_json(run.folder / RECORD, {"settings": settings, "steps": run.steps, "files": files})


def _train(
    folder: Path, study: Study, run: StudyRun, maskwright: Maskwright, report: Callable[[str, int], None]
) -> None:
    """Train with the study's config and overrides for arm, seed and budget."""
    name = folder.absolute().name[:200]
    values = {
        "run.dir": str(run.folder),
        "run.seed": run.seed,
        "run.resume": "auto",
        "train.steps": run.steps,
        "masking": run.arm.masking,
        "eval.masks": "common",
        "track.parent": name if run.budget == "tokens" else f"{name}, equal time",
    }
    report("training", _steps_done(run.folder))
    code = call(
        maskwright,
        train_words(folder, study, values),
        run.folder / LOG,
        lambda: report("training", _steps_done(run.folder)),
        accepted=(0, EXIT_CODES["stopped"]),
    )
    if code:
        raise Stopped(run.folder)
    if not _is_trained(run):
        raise UserError(f"{run.folder}: the training ended before step {run.steps}; see {run.folder / LOG}")


def train_words(folder: Path, study: Study, values: dict[str, Any]) -> list[str]:
    """`maskwright train` arguments: the study's config with overrides in YAML on one line."""
    overrides = [f"{key}={on_one_line(value)}" for key, value in values.items()]
    return ["train", str(folder / "config.yaml"), *overrides, "--procs", str(study.processes)]


def _measure(maskwright: Maskwright, words: list[str], out: Path, log: Path) -> None:
    """Run a command that writes its results to a JSON file."""
    call(maskwright, [*words, "--uri", "none", "--json", str(out)], log)
    if read_result(out) is None:
        raise UserError(f"`maskwright {words[0]}` wrote no JSON to {out}; see {log}")


def call(
    maskwright: Maskwright,
    words: list[str],
    log: Path,
    look: Callable[[], None] = lambda: None,
    accepted: Sequence[int] = (0,),
) -> int:
    """Run a command and return its exit code. Raise UserError, with the end of its log, for one not in `accepted`."""
    code = maskwright(words, log, look)
    if code not in accepted:
        try:
            lines = read_bytes(log).decode(errors="replace").splitlines()[-_LOG_LINES:]
        except UserError:
            lines = []
        raise UserError(f"`maskwright {words[0]}` ended with exit code {code}: {' / '.join(lines)} (log: {log})")
    return code


def _is_trained(run: StudyRun) -> bool:
    try:
        status = RunFolder(run.folder).read_status()
    except UserError:
        return False
    return status.state == "completed" and status.step == run.steps


def _steps_done(folder: Path) -> int:
    """Steps recorded in status.json; 0 if the run has not started."""
    try:
        return RunFolder(folder).recorded_status().step
    except UserError:
        return 0


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be removed ({error.strerror}). Remove it.") from None
