"""State of runs for the watching commands, from folder, status, journal and Slurm's queue."""

import shlex
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python
from rich.cells import cell_len
from rich.text import Text

from data_prep.common.errors import UserError, without_controls
from data_prep.storage import is_run
from launchers.display import facts_table, text_console, text_table
from launchers.slurm import QueuedJob, own_jobs
from pretrain.run import RunFolder

if TYPE_CHECKING:
    from pretrain.reporting import RunSummary

PIPE_WIDTH = 1000  # columns of a table in a pipe, so that no line wraps
_FIRST_TO_GO = ("job", "updated", "%", "tokens/s", "next", "left", "loss")  # columns that a narrow terminal lacks
_NEXT_WIDTH = 25  # other columns make room for so many cells of `next`; a longer text folds
_FOLLOW_SECONDS = 2.0
WAITS = "queued"  # state of a run whose job has not started, so that it has no status yet


@dataclass(frozen=True)
class RunView:
    """A run with its jobs in Slurm's queue."""

    summary: "RunSummary"
    jobs: list[QueuedJob]

    @property
    def is_run(self) -> bool:
        return bool(self.jobs) or is_run(self.summary.run)

    @property
    def state(self) -> str:
        """State of the summary, or "queued" before the job has started."""
        status = self.summary.status
        waits = self.jobs and self.jobs[0].waits and (status is None or status.is_over)
        return WAITS if waits else self.summary.state

    @property
    def reason(self) -> str:
        if self.state == WAITS:
            return f"job {self.jobs[0].id} waits in the queue ({self.jobs[0].reason})"
        return self.summary.reason

    @property
    def next_action(self) -> str:
        if self.state == WAITS:
            return f"none; `maskwright stop {self.summary.run}` takes it out of the queue"
        return self.summary.next_action

    def facts(self) -> dict[str, Any]:
        """All fields as JSON values. Numbers that are not finite become null."""
        said = {"state": self.state, "reason": self.reason, "next_action": self.next_action}
        jobs = [asdict(job) | {"run": str(self.summary.run)} for job in self.jobs]
        values = self.summary.as_values() | said | {"jobs": jobs, "parent": parent_of(self.summary.run)}
        values["log"] = str(log) if (log := newest_log(self.summary.run)) else None
        return dict(to_jsonable_python(values, inf_nan_mode="null"))


def view_runs(given: list[Path]) -> list[RunView]:
    """Read the current state of runs, each once. A folder that is not a run is replaced by the runs below it.

    An unreadable status is a problem in the summary. Raises UserError if there is a single run and it cannot be read.
    """
    from pretrain.reporting import runs_below, summarize

    paths = dict.fromkeys(run for path in given for run in runs_below(path) or [path])
    # Only submitted runs have a job; Slurm is not called for other runs.
    jobs, _ = own_jobs() if any(RunFolder(run).slurm.is_dir() for run in paths) else ([], None)
    views = [RunView(summarize(path), [job for job in jobs if job.trains(path)]) for path in paths]
    if len(views) == 1 and views[0].summary.problem and not views[0].jobs:
        raise UserError(views[0].summary.problem)
    return views


def require_runs(views: list[RunView]) -> None:
    """Raise UserError that names the folders that are not runs, after the others were shown or stopped."""
    if problems := [view.summary.problem or "" for view in views if not view.is_run]:
        raise UserError(" ".join(problems))


def parent_of(run: Path) -> str | None:
    """The checkpoint that a run was branched from, as RUN@STEP; None for a run without a parent."""
    from pretrain.checkpoint import step_of
    from pretrain.reporting import read_config

    checkpoint = Path(str(read_config(RunFolder(run).config).get("run.resume", "")))
    step, parent = step_of(checkpoint.name), checkpoint.parent.parent
    return None if step is None or parent.resolve() == run.resolve() else f"{parent}@{step}"


def newest_log(run: Path) -> Path | None:
    """The log of a run's newest Slurm job. No link is followed: the run folder may come from somebody else."""
    folder = RunFolder(run).slurm
    logs = [] if folder.is_symlink() else [path for path in folder.glob("*.log") if not path.is_symlink()]
    return max(filter(Path.is_file, logs), key=lambda path: path.stat().st_mtime, default=None)


def ago(seconds: float) -> str:
    """Format an age, for example "3 min"."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def print_run(view: RunView) -> None:
    """Print all that is known about one run."""
    summary, last = view.summary, view.summary.last_checkpoint
    share = "" if summary.percent is None else f" ({summary.percent:.1f}%)"
    average = "" if summary.loss_average is None else f" (last steps on average {summary.loss_average:.4f})"
    accuracy = summary.eval_masked_accuracy
    held_out = [] if accuracy is None else [f"masked accuracy {accuracy:.1%}"]
    held_out += [f"{name} {loss:.4f}" for name, loss in summary.eval_losses.items()]
    more = f" ({', '.join(held_out)})" if held_out else ""
    flash = summary.flash_attention
    log = newest_log(summary.run)
    backend = f"FlashAttention {flash}" if flash else summary.attention_reason
    rows = {
        "state": view.state,
        "step": _step(view) + share if summary.status else "",
        "branched from": parent_of(summary.run) or "",
        "phase": summary.phase or "",
        "loss": _number(summary.loss, ".4f") and f"{summary.loss:.4f}{average}",
        "training accuracy": _number(summary.masked_accuracy, ".1%") and f"{summary.masked_accuracy:.1%} (of one step)",
        "held-out loss": _number(summary.eval_loss, ".4f") + more,
        "tokens/s": _number(summary.tokens_per_second, ",.0f"),
        "time left": _left(view),
        "updated": f"{_age(view)} ago" if summary.status else "",
        "checkpoint": "" if last is None else _checkpoint(last.step, last.age_seconds, last.problem),
        "attention": _with_reason(summary.attention, backend),
        "kernels": _with_reason(summary.kernels, summary.kernels_reason),
        "micro-batch": _number(summary.micro_batch_size, ",") and f"{summary.micro_batch_size:,} rows",
        "starts": str(summary.starts or ""),
        "Slurm job": _jobs(view)
        or (f"{summary.slurm_job}, no longer in the queue of this user" if summary.slurm_job else ""),
        "log": f"{log}; follow it with: tail -F {shlex.quote(str(log))}" if log else "",
        "MLflow": summary.mlflow_page or "",
        "reason": view.reason,
        "next": view.next_action,
    }
    text_console(PIPE_WIDTH).print(facts_table(rows))


def print_runs(views: list[RunView]) -> None:
    """Print a table of runs. On a terminal that is too narrow, `next` folds and columns of `_FIRST_TO_GO` are left out.

    `next` stays if a run has a problem.
    """
    cells = {
        "run": [_place(view.summary.run) for view in views],
        "state": [view.state for view in views],
        "step": [_step(view) for view in views],
        "%": [_number(view.summary.percent, ".0f") for view in views],
        "loss": [_number(view.summary.loss, ".4f") for view in views],
        "tokens/s": [_number(view.summary.tokens_per_second, ",.0f") for view in views],
        "left": [_left(view) for view in views],
        "updated": [_age(view) for view in views],
        "job": [_jobs(view) for view in views],
        "next": [view.summary.problem or view.next_action for view in views],
    }
    console, empty = text_console(PIPE_WIDTH), [name for name, column in cells.items() if not any(column)]
    kept = "next" if any(view.summary.problem for view in views) else None
    for name in ("", *empty, *(name for name in _FIRST_TO_GO if name != kept)):
        cells.pop(name, None)
        table = text_table([*cells], zip(*cells.values(), strict=True), texts=("state", "job", "next"))
        if "next" in cells:
            table.columns[-1].max_width = _NEXT_WIDTH
        room = console.width - console.measure(table, options=console.options.update(max_width=PIPE_WIDTH)).maximum
        if room >= 0:
            break
    if "next" in cells:
        table.columns[-1].max_width = _NEXT_WIDTH + max(0, room)
    console.print(table)


def follow_runs(folders: list[Path]) -> None:
    """Print a line for each run whenever its state or step changes, until none starts, trains or is queued."""
    console, printed = text_console(PIPE_WIDTH), dict[Path, str]()
    while True:
        runs = view_runs(folders)
        for view in runs:
            progress = (_place(view.summary.run), view.state, view.summary.phase, _step(view) and f"step {_step(view)}")
            if (line := " | ".join(filter(None, progress))) != printed.get(view.summary.run):
                printed[view.summary.run] = line
                numbers = {
                    "loss": _number(view.summary.loss, ".4f"),
                    "time left": _left(view),
                    "held-out loss": _number(view.summary.eval_loss, ".4f"),
                    "tokens/s": _number(view.summary.tokens_per_second, ",.0f"),
                }
                words = [line, *(f"{name} {value}" for name, value in numbers.items() if value)]
                while len(words) > 1 and cell_len(" | ".join(words)) > console.width:
                    words.pop()
                console.print(Text(without_controls(" | ".join(words))))
        if getattr(sys.stdout, "has_lost_reader", False) or not any(
            view.state in ("starting", "running", WAITS) for view in runs
        ):
            return
        time.sleep(_FOLLOW_SECONDS)


def _step(view: RunView) -> str:
    status = view.summary.status
    return f"{status.step:,} of {status.total_steps:,}" if status else ""


def _place(run: Path) -> str:
    """Format a run folder, relative to the working directory if it is below it."""
    return str(run.relative_to(Path.cwd())) if run.is_relative_to(Path.cwd()) else str(run)


def _age(view: RunView) -> str:
    return ago(time.time() - view.summary.status.time) if view.summary.status else ""


def _left(view: RunView) -> str:
    left = view.summary.seconds_left
    return "" if left is None else str(timedelta(seconds=round(min(left, 1e13))))  # timedelta holds little more


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _jobs(view: RunView) -> str:
    return ", ".join(f"{job.id} {job.state.lower()}{f' ({job.reason})' if job.waits else ''}" for job in view.jobs)


def _with_reason(value: str | None, reason: str | None) -> str:
    return f"{value} ({reason})" if value and reason else value or ""


def _checkpoint(step: int, age: float | None, problem: str | None) -> str:
    if problem:
        return f"step {step:,}, damaged: {problem}"
    return f"step {step:,}, {ago(age or 0)} ago; sizes are right, `maskwright checkpoints` reads every byte"
