"""Run a study on this machine, one run after the other.

A run trains, exports, evaluates and fine-tunes by `maskwright` commands. Intact results are skipped.
"""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.common.reading import read_bytes
from evaluation.study.study_arms import arm_words
from evaluation.study.study_file import EVALUATION, FINETUNING, RECORD, Study, StudyRun, read_result
from evaluation.study.study_results import figures, stopped_of, values_of
from pretrain.config_files import override_words
from pretrain.run import EXIT_CODES, RunFolder

LOG = "study.log"  # in a run folder: output of its commands
_LOG_LINES = 3  # of a failed command, quoted in the error message

Maskwright = Callable[[Sequence[str], Path, Callable[[], None]], int]
"""(words, log, poll): run `maskwright WORDS` and return the exit code. Call `poll` every second meanwhile."""
Say = Callable[[str], None]
"""Called with a line for the user."""
Show = Callable[[int, int, str], None]
"""Called with the steps done, the total steps of this call, and the current task."""


class Stopped(Exception):
    """A study or one of its runs received a request to stop, and the running command has exited cleanly.

    Args:
        run: the run that received the request; None: the study.
    """

    def __init__(self, run: Path | None = None) -> None:
        super().__init__()
        self.run = run


def run_study(
    study: Study,
    maskwright: Maskwright,
    say: Say,
    show: Show = lambda done, total, line: None,
    only: Sequence[int] | None = None,
) -> list[str]:
    """Do all unfinished runs. Return the failed runs with the reasons; a failure does not stop the other runs.

    Args:
        say: called when a run starts, ends or fails.
        only: numbers of the runs to do, from 1. Then no arm is stopped early.

    Raises:
        UserError: if `only` has an unknown run.
        Stopped: after a request to stop.
    """
    runs = study.runs
    numbers = range(1, len(runs) + 1) if only is None else only
    if unknown := [number for number in numbers if not 1 <= number <= len(runs)]:
        raise UserError(f"{study.folder} has the runs 1 to {len(runs)}, and no run {unknown[0]}")
    todo = [(number, run) for number in numbers if not (run := runs[number - 1]).is_done]
    if len(todo) < len(numbers):
        say(f"{len(numbers) - len(todo)} of {len(numbers)} runs are done already")
    total, failed, left_out = sum(run.arm.steps for _, run in todo), list[str](), list[tuple[int, StudyRun]]()
    stop_early, looked = study.stop_early and only is None, (0, 0)
    worse, broken = dict[str, str](), dict[str, str]()  # why arms get no more seeds, by name
    while todo:
        done = total - sum(run.arm.steps for _, run in todo)
        number, run = todo.pop(0)
        title, begun = f"run {number} of {len(runs)}: {run.name}", time.monotonic()
        if run.is_done:  # finished by another process since the start: a job array, or --only
            say(f"{title}: done meanwhile")
            continue
        if stop_early and (look := (run.seed - 1, len(broken))) != looked:
            looked, worse = look, _worse_arms(study, run.seed - 1, broken)
        if reason := broken.get(run.arm.name) or worse.get(run.arm.name):
            say(f"{title}: left out: {reason}")
            if run.arm.name not in broken:
                left_out.append((number, run))
            continue
        say(f"{title}, {run.arm.steps:,} steps")

        def report(doing: str, steps: int, done: int = done, title: str = title) -> None:
            show(done + steps, total, f"{title}, {doing}")

        try:
            do_run(study, run, maskwright, report)
            say(f"{title}: done in {timedelta(seconds=round(time.monotonic() - begun))}")
        except UserError as error:
            failed.append(f"{run.name}: {error}")
            say(f"{title}: failed: {error}")
        if stop_early and study.primary not in (figures(run.folder) if run.is_done else ()):
            broken[run.arm.name] = f"seed {run.seed} failed"
            todo, left_out = [*left_out, *todo], []  # the failed arm may have stopped them
    return failed


def _worse_arms(study: Study, looks: int, broken: Collection[str]) -> dict[str, str]:
    """Why the sequential test of the arms that are not broken gives arms no more seeds, by name."""
    values = {arm: of for arm, of in values_of(study).get(study.primary, {}).items() if arm not in broken}
    return {arm: f"worse than the best arm after {n} seeds" for arm, n in stopped_of(study, values, looks).items()}


def do_run(study: Study, run: StudyRun, maskwright: Maskwright, report: Callable[[str, int], None]) -> None:
    """Train, export, evaluate and, if configured, fine-tune. Damaged results are computed again.

    Every run is evaluated on the same held-out tokens and masks. Only training runs go to MLflow.

    Args:
        report: called with the current task and the steps trained so far.

    Raises UserError if a command fails, and Stopped after a request to stop.
    """
    log = run.folder / LOG
    for name in (RECORD, *run.results):
        if name == RECORD or not read_result(run.folder / name):
            _remove(run.folder / name)
    if _recorded(run) != ("completed", run.arm.steps):
        _train(study, run, maskwright, report)
    model = RunFolder(run.folder).export_of(run.arm.steps)  # the export is atomic
    if not (model / "config.json").is_file():
        report("export", run.arm.steps)
        call(maskwright, ["export", str(run.folder), "--step", str(run.arm.steps)], log)
    if not (run.folder / EVALUATION).exists():
        report("evaluation", run.arm.steps)
        pairs = ["--pairs", study.pairs] if study.pairs else []
        pairs += ["--limit", str(study.pairs_limit)] if study.pairs_limit else []
        text = ["--data", study.data, *(["--seq-len", str(study.seq_len)] if study.seq_len else [])]
        _measure(maskwright, ["evaluate", str(model), *text, *pairs], run.folder / EVALUATION, log)
    if study.finetune:
        report("fine-tuning", run.arm.steps)  # resumes from its file
        _measure(maskwright, ["finetune", str(model), *study.finetune], run.folder / FINETUNING, log)
    write_json(run.folder / RECORD, {"steps": run.arm.steps})


def _train(study: Study, run: StudyRun, maskwright: Maskwright, report: Callable[[str, int], None]) -> None:
    """Train with the study's config and overrides for arm and seed."""
    values = {
        "run.dir": str(run.folder),
        "run.seed": run.seed,
        "run.resume": "auto",
        "track.parent": study.folder.absolute().name[:200],
    }
    overrides = [*arm_words(run.arm.overrides), *override_words(values)]
    report("training", _recorded(run)[1])
    code = call(
        maskwright,
        ["train", str(study.folder / "config.yaml"), *overrides, "--procs", str(study.processes)],
        run.folder / LOG,
        lambda: report("training", _recorded(run)[1]),
        accepted=(0, EXIT_CODES["stopped"]),
    )
    if code:
        raise Stopped(run.folder)
    if _recorded(run) != ("completed", run.arm.steps):
        raise UserError(f"{run.folder}: the training ended before step {run.arm.steps}; see {run.folder / LOG}")


def _measure(maskwright: Maskwright, words: list[str], out: Path, log: Path) -> None:
    """Run a command that writes its results to a JSON file."""
    call(maskwright, [*words, "--uri", "none", "--json", str(out)], log)
    if not read_result(out):
        raise UserError(f"`maskwright {words[0]}` wrote no JSON to {out}; see {log}")


def call(
    maskwright: Maskwright,
    words: list[str],
    log: Path,
    poll: Callable[[], None] = lambda: None,
    accepted: Sequence[int] = (0,),
) -> int:
    """Run a command and return its exit code. Raise UserError, with the end of its log, for one not in `accepted`."""
    code = maskwright(words, log, poll)
    if code not in accepted:
        try:
            lines = read_bytes(log).decode(errors="replace").splitlines()[-_LOG_LINES:]
        except UserError:
            lines = []
        raise UserError(f"`maskwright {words[0]}` ended with exit code {code}: {' / '.join(lines)} (log: {log})")
    return code


def _recorded(run: StudyRun) -> tuple[str, int]:
    """State and step in status.json; "" and 0 if the run has not started."""
    status = RunFolder(run.folder).status_or_none()
    return (status.state, status.step) if status else ("", 0)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be removed ({error.strerror}). Remove it.") from None
