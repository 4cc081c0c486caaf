"""The step loop: load a batch, step, report, evaluate, save, until the run is over."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from data_prep.common.errors import UserError
from pretrain.checkpoint import Identity, Saver
from pretrain.config import Phase
from pretrain.data import DeviceBatch, DeviceFeed, Loader, LoaderStep, MixturePosition, Prefetcher
from pretrain.distributed import DeferredReader, run_on_rank_zero
from pretrain.engine import Engine, StepOutput, StepSums
from pretrain.guards import EndOfRun, StepGuard, StepResult, check_replicas, end_for_wrong_gradients
from pretrain.loop.garbage import ChosenCollections
from pretrain.loop.held_out import HeldOutEvaluation
from pretrain.loop.step_metrics import FlopsCounter, Instant, StepInfo, step_metrics
from pretrain.objectives import loss_weights
from pretrain.optim import learning_rate
from pretrain.reporting import Profile
from pretrain.resuming import ResumeState, checkpoint_state
from pretrain.run import State, StopRequest
from pretrain.setup import RunParts

_STATUS_SECONDS = 5.0
Report = Callable[[int, dict[str, float], dict[str, Any] | None], None]
Outcome = State | Literal["spike"]


@dataclass(frozen=True)
class _LoadedStep:
    """A step with its batches on their way to the device, and this rank's sums over them."""

    step: LoaderStep
    batches: list[DeviceBatch]
    sums: StepSums


class Loop:
    """The step loop of one rank, from `start` to the end of the run or a request to stop.

    Args:
        engine, loader: the training engine and its batches.
        start: the resume state.
        stop: the request to stop.
        report: called on rank 0 with the metrics of a step and, for a training step, its batch (journal.Entry).
    """

    def __init__(
        self, run: RunParts, engine: Engine, loader: Loader, start: ResumeState, stop: StopRequest, report: Report
    ):
        config, device = run.config, engine.device
        self._run, self._config, self._folder = run, config, run.folder
        self._engine, self._loader, self._stop, self._record = engine, loader, stop, report
        self._is_rank_zero, self._ranks, self._objectives = run.rank == 0, len(run.hosts), len(config.objective_kinds)
        self._step, self._position = start.steps_done, start.position
        self._replaced_tokens, self._init = start.replaced_tokens, start.init
        self._stopping = self._save_due = False
        self.guard = StepGuard(config.guard, self._folder.path, start.history, run.hosts, self._is_rank_zero)
        self._feed = DeviceFeed(device)
        self._flops, self._phase, self._settings = FlopsCounter.of(run, device), config.phase_at(start.steps_done), ""
        self._deferred: DeferredReader[StepInfo] = DeferredReader(lag=2 if device.type == "cuda" else 0)
        self._held_out = HeldOutEvaluation(run, run.valid, self._feed) if run.valid else None
        self._saver = Saver(self._folder.checkpoints, config.checkpoint, engine.snapshot, self._report, self._step)
        finish, folder = self._engine.wait_for_weights, self._folder.profile
        self._profile = Profile(config.train.profile, folder, run.marker, self._step, run.rank, finish)
        self._last_status = 0.0
        self._since: Instant | None = None  # when the last step ended; None after something else took time
        self._waited = 0.0  # seconds that the last step waited for data
        self._unwritable: str | None = None  # the problem, if rank 0 cannot write the journal

    def run(self) -> Outcome:
        """Train to the end; "completed", "stopped", or "spike": the run should go back.

        Raises:
            UserError: on every rank, if the run cannot continue.
        """
        with ChosenCollections() as collections:
            return self._run_steps(collections)

    def _run_steps(self, collections: ChosenCollections) -> Outcome:
        config, total = self._config, self._config.train.steps
        last = min(total, config.run.stop_after or total)
        batches = Prefetcher(self._loader, self._step, self._position, self._prepare)
        try:
            while self._step < last and not self._stopping and not self.guard.rollback_due:
                step = self._load(batches)
                self._train(step)
                collections.after_step(self._step)

                if self._due(config.guard.replica_check_steps):
                    self._check_replicas()

                if self._due(config.eval.every_steps) or self._step == total:
                    self._evaluate()

                listed = self._step == total or self._step in config.checkpoint.at_steps
                if self._due(config.checkpoint.every_steps) or self._save_due or listed:
                    self._save()

            self._report_steps(self._deferred.drain())
        except EndOfRun:
            self._run.marker.enter("checkpoint", self._step)
            with contextlib.suppress(UserError):  # that the save in flight failed; why the run ends comes first
                self._saver.finish()
            raise
        finally:
            self._profile.close()
            batches.close()
            if self._held_out:
                self._held_out.close()
        return self._end()

    def _end(self) -> Outcome:
        """Wait for the last checkpoint. After a spike, only finish the save in progress."""
        self._run.marker.enter("checkpoint", self._step)
        if self.guard.rollback_due:
            self._saver.finish()
        else:
            self._save_last()
            run_on_rank_zero(self._check_written)
        self._saver.close()
        if self.guard.rollback_due:
            return "spike"
        return "completed" if self._step >= self._config.train.steps else "stopped"

    # Load

    def _prepare(self, step: LoaderStep) -> _LoadedStep:
        """In the prefetch thread."""
        sums = [(b.n_tokens, b.n_replaced, b.checksum(), self._flops.of_batch(b)) for b in step.batches]
        totals = np.sum([batch.totals(self._objectives) for batch in step.batches], axis=0).tolist()
        predictions, weights = map(tuple, totals)
        batches = [self._feed(batch) for batch in step.batches]
        of_batch = map(sum, zip(*sums, strict=True))
        return _LoadedStep(step, batches, StepSums(*of_batch, predictions=predictions, weights=weights))

    def _load(self, batches: Prefetcher[_LoadedStep]) -> _LoadedStep:
        """Wait for the batches of the next step."""
        if self._profile.before(self._step + 1):
            self._since = None
        start = time.monotonic()
        self._since = self._since or Instant(self._engine.device)
        self._run.marker.enter("data", self._step + 1)
        loaded = batches.next()
        self._waited = time.monotonic() - start
        return loaded

    # Step

    def _train(self, loaded: _LoadedStep) -> None:
        """Take one optimizer step, and report the steps whose values have arrived."""
        info, values = self._take_step(loaded)
        self._step, self._position = self._step + 1, loaded.step.after
        self._report_steps(self._deferred.push(info, values))
        if self._profile.after(self._step):
            self._since = None

    def _take_step(self, loaded: _LoadedStep) -> tuple[StepInfo, Tensor]:
        """The values of a step that the host knows, and those on the device."""
        config, before = self._config, loaded.step.before
        if self._phase.end == self._step or not self._settings:
            self._enter_phase(config.phase_at(self._step))
        lr = learning_rate(config, self._step)
        batches = [batch.wait() for batch in loaded.batches]
        self._run.marker.enter("collective")
        sums = self._engine.total(self._own_sums(loaded).pack())
        norms_due = _is_due(config.track.group_norms_every, self._step + 1)
        check_due = _is_due(config.guard.gradient_check_steps, self._step + 1)
        report = partial(end_for_wrong_gradients, config=config, step=self._step + 1) if check_due else None
        weights = StepSums.packed_weights(sums, self._objectives)
        of_objectives = loss_weights(config, self._step, loaded.step.shares)
        output = self._engine.step(batches, weights, lr, norms_due, report, of_objectives)
        ended = Instant(self._engine.device)
        times, self._since = (self._since or ended, ended), ended
        rows, seq_len = loaded.step.after.dealt - before.dealt, loaded.batches[0].seq_len
        drawn = loaded.step.mask_rate, loaded.step.shares
        phase = self._phase.number, self._settings
        info = StepInfo(self._step + 1, lr, before, rows, seq_len, *drawn, *phase, times, self._waited)
        self._run.marker.enter("journal")
        return info, torch.cat([output, sums])

    def _enter_phase(self, phase: Phase) -> None:
        """Use the settings of a phase of the run from the next step on."""
        self._phase = phase
        self._settings = Identity.of(self._config, self._run.data, self._step + 1).batch_digest()
        model = phase.config.model
        self._engine.set_rotary_bases(model.global_rope_theta, model.local_rope_theta)

    def _own_sums(self, loaded: _LoadedStep) -> StepSums:
        """This rank's part of the sums of a step."""
        seconds = [0.0] * self._ranks
        seconds[self._run.rank] = self._engine.compute_timer.take() + self._waited
        stop = float(bool(self._stop) or self._unwritable is not None)
        written, save_due = self._saver.poll()
        return replace(loaded.sums, stop=stop, written=written, save_due=save_due, compute_seconds=tuple(seconds))

    # Report

    def _report_steps(self, due: list[tuple[StepInfo, list[float]]]) -> None:
        """Report steps whose values have arrived. All ranks have the same values, so they decide the same."""
        for info, values in due:
            output = StepOutput.unpack(values, self._ranks, self._objectives)
            sums = output.sums
            self._stopping = self._stopping or sums.stop > 0
            self._save_due = self._save_due or sums.save_due > 0
            self._replaced_tokens += int(sums.replaced)
            self._write_status(info.step)
            metrics = step_metrics(info, output, self._engine.groups, self._config)
            metrics |= self._flops.metrics(sums.flops, sum(sums.predictions), info.seconds, self._ranks)
            metrics |= self._judge(info, metrics["train/loss"], output)
            if self._config.phases:
                metrics["train/phase"] = info.phase
            if self._config.data.damage_budget:
                metrics["data/replaced_tokens"] = self._replaced_tokens
            batch = info.batch(sums)
            self._report(info.step, metrics | self._epochs(info.before), batch)
            self._check(info.step)
            if sums.written == self._ranks and self._saver.busy:
                self._saver.finish()
                self._since = None

    def _judge(self, info: StepInfo, loss: float, output: StepOutput) -> dict[str, float]:
        """Let the guard check a step; the metrics that it adds."""
        times = (output.sums.compute_seconds, info.waited, info.seconds)
        return self.guard.record(StepResult(info.step, info.before, info.shape, loss, output.skipped > 0, *times))

    def _epochs(self, position: MixturePosition) -> dict[str, float]:
        """The number of epochs read of each source."""
        streams = self._loader.mixture.streams
        read = [stream.progress(place) for stream, place in zip(streams, position.sources, strict=True)]
        if len(read) == 1:
            return {"data/epoch": read[0]}
        return {f"data/epoch/{name}": epochs for name, epochs in zip(self._run.data.names, read, strict=True)}

    def _check(self, step: int) -> None:
        """End a run that cannot continue, on all ranks at the same step."""
        self.guard.check()
        if self._replaced_tokens > self._config.data.damage_budget:
            raise EndOfRun(
                f"by step {step}, {self._replaced_tokens} tokens were replaced because their blocks are damaged, more "
                f"than data.damage_budget ({self._config.data.damage_budget}); the warnings above name the files: "
                "restore them, or raise the budget"
            )

    def _report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None = None) -> None:
        """Record metrics on rank 0. A failed write ends the run, but not while a save in progress may fill the disk."""
        if not self._is_rank_zero:
            return
        try:
            self._record(step, metrics, batch)
        except OSError as error:
            if not self._saver.busy:
                self._unwritable = f"{self._folder.journal} cannot be written ({error.strerror})"

    def _check_written(self) -> None:
        if self._unwritable:
            raise UserError(f"{self._unwritable}; make room, and run the same command again")

    def _write_status(self, step: int) -> None:
        now = time.monotonic()
        if self._is_rank_zero and now - self._last_status >= _STATUS_SECONDS:
            self._last_status = now
            problem = self._saver.problem
            said = (f", but {problem}", "make room, or repair the disk") if problem else ("", "none")
            phase = f", phase {self._phase.name}" if self._phase.name else ""
            reason = f"training{phase}{self.guard.history}{said[0]}"
            try:
                self._folder.progress(step, self._config.train.steps, reason, said[1])
            except OSError as error:
                print(f"warning: {self._folder.status} was not written ({error.strerror})", file=sys.stderr, flush=True)

    # Evaluate

    def _evaluate(self) -> None:
        """Evaluate on the held-out data, if there are any, unless a rollback is due."""
        if self._held_out is None:
            return
        self._report_steps(self._deferred.drain())
        if self.guard.rollback_due:
            return
        self._since = None
        self._report(self._step, self._held_out.evaluate(self._engine, self._step))

    # Save

    def _save(self) -> None:
        """Begin a checkpoint of this step."""
        self._report_steps(self._deferred.drain())  # their sums report the save in progress
        if self.guard.rollback_due:
            return
        self._since, self._save_due = None, False
        self._run.marker.enter("checkpoint", self._step)
        self._check_weights()
        so_far = self._replaced_tokens, self._init, self.guard.history
        state = ResumeState(self._step, self._position, *so_far)
        self._saver.begin(self._step, checkpoint_state(self._config, self._run.data, state))

    def _save_last(self) -> None:
        """Wait for a checkpoint of the last step; retry once if it failed."""
        self._saver.finish()
        if self._saver.saved_step != self._step:
            self._save()
            self._saver.finish()
        if self._saver.saved_step != self._step:
            raise UserError(f"{self._saver.problem}, and it was the last; make room, and run the same command again")

    def _check_weights(self) -> None:
        """End the run instead of saving weights that are not finite or differ between ranks."""
        if self._config.guard.replica_check_steps and not self._due(self._config.guard.replica_check_steps):
            self._check_replicas()
        if not self._engine.weights_finite():
            raise EndOfRun(
                f"after step {self._step} some weights are not finite, so that no checkpoint is made of them; lower "
                "optim.lr or lengthen schedule.warmup_steps, and go on from the last checkpoint with "
                "run.allow_changes=true"
            )

    def _check_replicas(self) -> None:
        check_replicas(self._engine.replicas(), self._run.hosts, self._step, self._engine.device)

    def _due(self, every: int) -> bool:
        return _is_due(every, self._step)


def _is_due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
