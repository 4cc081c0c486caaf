"""The summary of a run, from its folder alone: state, step, speed, time left, last checkpoint and problems.

`status` and the report show it.
"""

import itertools
import math
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.storage import is_run
from pretrain import checkpoint
from pretrain.run import Entry, JournalReader, RunFolder, Status
from pretrain.tracking import run_page

_AVERAGED = 100  # steps
_EACH = "eval/loss/"
_OF_START = ("attention", "flash_attention", "attention_reason", "kernels", "kernels_reason", "micro_batch_size")


@dataclass(frozen=True)
class LastCheckpoint:
    """The newest committed checkpoint. problem: damage found in its manifest and file sizes; None if intact."""

    step: int
    age_seconds: float | None
    problem: str | None


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run. Values that are not known are None.

    Attributes:
        status: the content of status.json. problem: the reason that it cannot be read.
        phase: the name of the phase of the last measured step.
        loss, masked_accuracy, tokens_per_second: of the last measured step.
        loss_average: over the last 100 measured steps.
        eval_loss, eval_masked_accuracy: of the last evaluation. eval_losses: of each objective of a mixture.
        seconds_left: of a running run, estimated from the median time between its last steps.
        starts: number of starts.
        slurm_job: the last job that trained the run.
        attention, flash_attention, attention_reason, kernels, kernels_reason: of the last start, see
            pretrain.model.ComputeBackends. flash_attention is its version. The reasons say why attention is sdpa, and
            why these kernels.
        micro_batch_size: rows of one pass on one process, of the last start's first stage.
        mlflow_page: the address of the run in MLflow.
    """

    run: Path
    status: Status | None = None
    problem: str | None = None
    phase: str | None = None
    loss: float | None = None
    loss_average: float | None = None
    masked_accuracy: float | None = None
    eval_loss: float | None = None
    eval_masked_accuracy: float | None = None
    eval_losses: dict[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    starts: int | None = None
    slurm_job: str | None = None
    attention: str | None = None
    flash_attention: int | None = None
    attention_reason: str | None = None
    kernels: str | None = None
    kernels_reason: str | None = None
    micro_batch_size: int | None = None
    last_checkpoint: LastCheckpoint | None = None
    mlflow_page: str | None = None

    @property
    def state(self) -> str:
        """The state in status.json; "unknown" without the file."""
        return self.status.state if self.status else "unknown"

    @property
    def reason(self) -> str:
        """The reason for the state, or the reason that it is not known."""
        return self.status.reason if self.status else self.problem or ""

    @property
    def next_action(self) -> str:
        """The next action for the user."""
        return self.status.next_action if self.status else "none"

    @property
    def percent(self) -> float | None:
        """The percentage of finished steps."""
        return 100 * self.status.step / self.status.total_steps if self.status and self.status.total_steps else None

    def as_values(self) -> dict[str, Any]:
        """All values as JSON values."""
        values = asdict(self)
        status, _ = values.pop("status"), values.pop("problem")
        said = {"state": self.state, "reason": self.reason, "next_action": self.next_action}
        return (status or {}) | said | values | {"run": str(self.run), "percent": self.percent}


def summarize(run: Path) -> RunSummary:
    """Summarize a run. Values of missing or damaged files are left out."""
    folder = RunFolder(run)
    try:
        status = folder.read_status()
    except UserError as error:
        return RunSummary(run, problem=str(error))
    entries = JournalReader(folder.journal).latest()
    last = {name: value for entry in entries for name, value in entry.metrics.items()}
    losses = [entry.metrics["train/loss"] for entry in entries if "train/loss" in entry.metrics][-_AVERAGED:]
    finite = [loss for loss in losses if math.isfinite(loss)]
    recorded = folder.read_environment()
    environment = recorded or {}
    phases = {float(number): name for number, name in enumerate(environment.get("phases", []))}
    return RunSummary(
        run,
        status,
        phase=phases.get(last.get("train/phase", -1.0)),
        loss=last.get("train/loss"),
        loss_average=statistics.fmean(finite) if finite else None,
        masked_accuracy=last.get("train/masked_accuracy"),
        eval_loss=last.get("eval/loss"),
        eval_masked_accuracy=last.get("eval/masked_accuracy"),
        eval_losses={name.removeprefix(_EACH): value for name, value in last.items() if name.startswith(_EACH)},
        tokens_per_second=last.get("speed/tokens_per_second"),
        seconds_left=_seconds_left(entries, status),
        starts=None if recorded is None else 1 + len(environment.get("earlier_starts", [])),
        slurm_job=environment.get("slurm", {}).get("SLURM_JOB_ID"),
        last_checkpoint=_newest_checkpoint(folder),
        mlflow_page=run_page(run),
        **{name: environment.get(name) for name in _OF_START},
    )


def runs_below(folder: Path) -> list[Path]:
    """The run folders in a folder and its subfolders, sorted by name; the folder itself if it is a run folder."""
    if is_run(folder):
        return [folder]
    runs = sorted(filter(is_run, folder.glob("*")))
    return runs + sorted(path for path in folder.glob("*/*") if path.parent not in runs and is_run(path))


def _seconds_left(entries: list[Entry], status: Status) -> float | None:
    if status.state != "running":
        return None
    steps = [entry for entry in entries if "train/loss" in entry.metrics][-_AVERAGED:]
    pairs = [(before, after) for before, after in itertools.pairwise(steps) if after.step == before.step + 1]
    if not pairs:
        return None
    each = statistics.median(after.time - before.time for before, after in pairs)
    return max(0.0, each) * max(0, status.total_steps - steps[-1].step)


def _newest_checkpoint(folder: RunFolder) -> LastCheckpoint | None:
    try:
        checkpoints = checkpoint.committed(folder.checkpoints)
    except OSError:
        return None
    if not checkpoints:
        return None
    step, path = checkpoints[0]
    problem = checkpoint.verify(path, sizes_only=True)
    return LastCheckpoint(step, None if problem else max(0.0, time.time() - checkpoint.read(path).time), problem)
