"""Reports of rank 0: journal, progress line, MLflow, report page, status.json."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from data_prep.errors import UserError
from data_prep.format import Dataset
from pretrain.config import Config
from pretrain.data import Sources
from pretrain.reporting.node_metrics import SystemMetrics
from pretrain.reporting.progress_line import ProgressLine
from pretrain.run import Journal, RunFolder, State
from pretrain.tracking import ModelLogger, RunRecord, Tracker

_MLFLOW_END: dict[State, str] = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_COMMITTED = "checkpoint/write_seconds"  # in the metrics of a committed checkpoint
_TRACKER_SECONDS = 20.0  # how long the end of a run waits for MLflow


class Reporting:
    """Reports the steps of a run. The journal is the record; everything else can be made from it.

    Args:
        data, valid: the training and the held-out data: dataset inputs of the MLflow run.
        steps_done: steps of earlier starts of this run.
        environment: the result of pretrain.reporting.environment.gather_environment.
        system: system metrics of the nodes.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: Sources,
        valid: Dataset | None,
        steps_done: int,
        environment: dict[str, Any],
        system: SystemMetrics,
    ):
        self._config, self._folder, self._last_step, self._system = config, folder, steps_done, system
        self._journal = Journal(folder.journal)
        self._progress = ProgressLine(config.train.steps, steps_done)
        if steps_done:
            self._progress.message(f"resumed after step {steps_done}")
        files = [folder.config.name, folder.environment.name]
        record = RunRecord.of_run(config, folder.title, environment, (data.fingerprint, data.datasets), valid, files)
        self._tracker = Tracker(folder.path, record, on_page=lambda page: self._progress.message(f"MLflow: {page}"))
        self._models = ModelLogger(folder, config.track)
        self._end: tuple[State, int, int, str, str, bool] | None = None  # how the run ended, until that is recorded

    def report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        """Record the metrics of a step. batch: of a training step; None for other events, such as a checkpoint."""
        if batch:  # other events come later than their step, and a rollback lowers the step number
            self._last_step = step
            metrics = metrics | self._system.latest()
        self._progress.update(self._last_step, metrics)
        self._journal.append(step, metrics, batch)
        self._tracker.start()  # not before: its imports would delay the first step
        if _COMMITTED in metrics:
            self._models.committed()

    def close(self, state: State, reason: str | None, retry: bool) -> None:
        """Finish the reports of a run that ended in `state`. retry: written to status.json if the run was stopped."""
        action = {"completed": "export the model", "stopped": "run the same command again to resume"}.get(state)
        if action:  # first, as the process may be killed during the rest
            why = "all steps are done" if state == "completed" else reason or "asked to stop"
            self._end = (state, self._last_step, self._config.train.steps, why, action, retry or state == "completed")
            with contextlib.suppress(OSError):  # `check_recorded` tries again
                self._record_end()
        self._progress.close()
        self._journal.close()
        if state != "failed":  # a failed run gets its status.json later
            self._write_page()
        self._tracker.close(timeout_seconds=_TRACKER_SECONDS, status=_MLFLOW_END[state])
        self._models.close(completed=state == "completed")

    def check_recorded(self) -> None:
        """Write the final status, if `close` could not.

        Raises:
            UserError: if it still cannot be written.
        """
        try:
            self._record_end()
        except OSError as error:
            raise UserError(
                f"{self._folder.status} cannot be written ({error.strerror}), so it does not say how the run ended "
                f"after step {self._last_step}; repair the disk, then run the same command again"
            ) from None

    def _record_end(self) -> None:
        if self._end:
            self._folder.write_status(*self._end)
            self._end = None

    def _write_page(self) -> None:
        """Write the report page and send it to MLflow. A failure prints a warning, and the run does not fail."""
        from pretrain.reporting.html_page import write_report  # not before: no step needs it

        path = self._folder.report
        try:
            write_report(self._folder.path, path)
        except Exception as error:
            print(f"warning: {path} was not written: {error}", file=sys.stderr, flush=True)
        else:
            self._tracker.log_artifact(path)


class RankReports:
    """The reports of one rank: system metrics of its node and, on rank 0, all others.

    Args:
        hosts: the host of each rank.
        data: the training and the held-out data.
        steps_done, environment: as for Reporting.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        hosts: Sequence[str],
        data: tuple[Sources, Dataset | None],
        steps_done: int,
        environment: dict[str, Any],
    ):
        self._stop_file, self._rank_zero = folder.stop, None
        self._system = SystemMetrics(folder.system, dist.get_rank(), hosts, config.track.system_seconds)
        if dist.get_rank() == 0:
            self._rank_zero = Reporting(config, folder, *data, steps_done, environment, self._system)
        self._system.start()

    def report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        """Record the metrics of a step, and of a training step its batch."""
        if self._rank_zero:
            self._rank_zero.report(step, metrics, batch)

    def close(self, end: State, reason: str | None) -> None:
        """Record how the run ended. `reason`: why it was stopped."""
        self._system.close()
        if self._rank_zero:
            by_file = self._stop_file.exists()
            with contextlib.suppress(OSError):  # a full or failed disk
                self._stop_file.unlink(missing_ok=True)  # honoured, or too late
            self._rank_zero.close(end, reason, retry=not by_file)

    def check_recorded(self) -> None:
        """Raise UserError if rank 0 cannot record how the run ended."""
        if self._rank_zero:
            self._rank_zero.check_recorded()
