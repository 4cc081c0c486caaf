"""Reports of a run: journal, progress line, MLflow, report page, status.json, and metrics of the nodes."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.config import Config
from pretrain.data import Sources
from pretrain.reporting.node_metrics import SystemMetrics
from pretrain.reporting.progress_line import ProgressLine
from pretrain.run import ALL_DONE, Journal, RunFolder, State
from pretrain.tracking import ModelLogger, RunRecord, Tracker

_MLFLOW_END: dict[State, str] = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_COMMITTED = "checkpoint/write_seconds"  # in the metrics of a committed checkpoint
_TRACKER_SECONDS = 20.0  # how long the end of a run waits for MLflow
_FAILED_SECONDS = 2.0  # the same after a failure: a supervisor may wait to start the run again


class Observer(Protocol):
    """A report of a run, on rank 0: it sees all that the step loop records. `Reports` has a list of them."""

    def record(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        """Report the metrics of a step. batch: of a training step; None for other events, such as a checkpoint."""

    def close(self) -> None:
        """Finish the report: the run is complete, was stopped, or failed."""


class Reports:
    """The reports of one rank. All but the first rank of the run only sample their node.

    The journal is the record; everything else can be made from it.

    Args:
        hosts: the host of each rank.
        data, valid: the training and the held-out data: dataset inputs of the MLflow run.
        steps_done: steps of earlier starts of this run.
        environment: the result of pretrain.reporting.record_environment.
        observers: further reports.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        rank: int,
        hosts: Sequence[str],
        data: Sources,
        valid: Dataset | None,
        steps_done: int,
        environment: dict[str, Any],
        observers: Sequence[Observer] = (),
    ):
        self._config, self._folder, self._is_rank_zero = config, folder, rank == 0
        self._nodes = SystemMetrics(folder.system, rank, hosts, config.track.system_seconds)
        self._nodes.start()
        self._observers = observers
        self._last_step = steps_done
        self._end: tuple[State, int, int, str, str, bool] | None = None  # how the run ended, until that is recorded
        if self._is_rank_zero:
            self._journal = Journal(folder.journal)
            phase_at = lambda step: config.phase_at(step - 1).name  # noqa: E731
            self._progress = ProgressLine(config.train.steps, steps_done, phase_at=phase_at)
            if steps_done:
                self._progress.message(f"resumed after step {steps_done}")
            files = [folder.config.name, folder.environment.name]
            record = RunRecord.of_run(
                config, folder.title, environment, (data.fingerprint, data.datasets), valid, files
            )
            self._tracker = Tracker(folder.path, record, on_page=lambda page: self._progress.message(f"MLflow: {page}"))
            self._models = ModelLogger(folder, config.track)

    def report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        """Record the metrics of a step. batch: of a training step; None for other events, such as a checkpoint."""
        if not self._is_rank_zero:
            return
        if batch:  # other events come later than their step, and a rollback lowers the step number
            self._last_step = step
            metrics = metrics | self._nodes.latest()
        self._progress.update(self._last_step, metrics)
        self._journal.append(step, metrics, batch)
        self._tracker.start()  # not before: its imports would delay the first step
        if _COMMITTED in metrics:
            self._models.committed()
        for observer in self._observers:
            observer.record(step, metrics, batch)

    def close(self, state: State, reason: str | None) -> None:
        """Finish the reports of a run that ended in `state`. `reason`: why it was stopped.

        After a failure, report it and then call `close_tracking`.
        """
        self._nodes.close()
        if not self._is_rank_zero:
            return
        limit = self._config.run.stop_after
        planned = state == "stopped" and limit is not None and self._last_step >= limit
        retry = state == "completed" or not (planned or self._folder.stop.exists())
        with contextlib.suppress(OSError):  # a full or failed disk
            self._folder.stop.unlink(missing_ok=True)  # honoured, or too late
        again = "raise run.stop_after to continue" if planned else "run the same command again to resume"
        action = {"completed": "export the model", "stopped": again}.get(state)
        if action:  # first, as the process may be killed during the rest
            asked = "run.stop_after is reached" if planned else reason or "asked to stop"
            why = ALL_DONE if state == "completed" else asked
            self._end_with(state, why, action, retry)
        self._progress.close()
        self._journal.close()
        for observer in self._observers:
            observer.close()
        if state == "failed":  # it gets its status.json later
            return
        if diverged := self._write_page():
            self._report_divergence(state, diverged)
        self.close_tracking(state, "diverged" if diverged else None)

    def close_tracking(self, state: State, outcome: str | None = None) -> None:
        """Send the rest to MLflow, in a bounded time. outcome: a tag of the MLflow run."""
        if self._is_rank_zero:
            seconds = _FAILED_SECONDS if state == "failed" else _TRACKER_SECONDS
            self._tracker.close(seconds, _MLFLOW_END[state], outcome)
            self._models.close(completed=state == "completed")

    def check_recorded(self) -> None:
        """Write the final status, if `close` could not.

        Raises UserError if it still cannot be written.
        """
        try:
            self._record_end()
        except OSError as error:
            raise UserError(
                f"{self._folder.status} cannot be written ({error.strerror}), so it does not say how the run ended "
                f"after step {self._last_step}; repair the disk, then run the same command again"
            ) from None

    def _end_with(self, state: State, reason: str, action: str, retry: bool) -> None:
        self._end = state, self._last_step, self._config.train.steps, reason, action, retry
        with contextlib.suppress(OSError):  # `check_recorded` tries again
            self._record_end()

    def _record_end(self) -> None:
        if self._end:
            self._folder.write_status(*self._end)
            self._end = None

    def _report_divergence(self, state: State, how: str) -> None:
        """Print how the run diverged. In the status, it replaces the reason of a completed run."""
        print(f"warning: {self._folder.path} diverged: {how}", file=sys.stderr, flush=True)
        if state == "completed":
            action = "lower optim.lr or raise schedule.warmup_steps, and train again in another run.dir"
            self._end_with(state, f"{ALL_DONE}, but training diverged: {how}", action, retry=True)

    def _write_page(self) -> str | None:
        """Write the report page and send it to MLflow. A failure prints a warning, and the run does not fail.

        Returns how training diverged, if it did.
        """
        from pretrain.reporting.html_page import write_page  # not before: no step needs it
        from pretrain.reporting.page_data import collect

        path = self._folder.report
        try:
            page = collect(self._folder.path, path)
            write_page(page, path)
        except Exception as error:
            print(f"warning: {path} was not written: {error}", file=sys.stderr, flush=True)
            return None
        self._tracker.log_artifact(path)
        return cast("str | None", page["diverged"])
