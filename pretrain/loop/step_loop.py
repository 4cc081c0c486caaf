"""The step loop: load a batch, step, report, evaluate, save, until the run is over."""

import contextlib
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from data_prep.common.errors import UserError
from pretrain.checkpoint import Identity, Saver
from pretrain.config import Phase
from pretrain.data import DeviceFeed, Loader, MixturePosition
from pretrain.distributed import DeferredReader, run_on_rank_zero
from pretrain.engine import Engine, StepClock, StepOutput, StepSums
from pretrain.guards import EndOfRun, StepGuard, StepResult, check_replicas
from pretrain.loop.garbage import ChosenCollections
from pretrain.loop.held_out import HeldOutEvaluation
from pretrain.loop.loaded_steps import LoadedStep, prefetch
from pretrain.loop.progress_records import Recorder, StatusWriter
from pretrain.loop.step_metrics import FlopsCounter, StepInfo, step_metrics
from pretrain.objectives import loss_weights
from pretrain.optim import learning_rate
from pretrain.reporting import Profile
from pretrain.resuming import ResumeState, checkpoint_state
from pretrain.run import RecordEntry, State, StopRequest
from pretrain.setup import RunParts

LoopEnd = State | Literal["spike"]


class Loop:
    """The step loop of one rank, from `start` to the end of the run or a request to stop.

    Args:
        engine, loader: the training engine and its batches.
        start: the resume state.
        stop: the request to stop.
        report: see Recorder.
    """

    def __init__(
        self, run: RunParts, engine: Engine, loader: Loader, start: ResumeState, stop: StopRequest, report: RecordEntry
    ):
        config, folder, steps_done = run.config, run.folder, start.steps_done
        self._run, self._config, self._engine, self._loader = run, config, engine, loader
        self._state, self._stop = start, stop
        self.guard = StepGuard(config.guard, folder.path, start.history, run.hosts, run.rank == 0)
        self._recorder = Recorder(report, folder, run.rank, lambda: self._saver.busy)
        self._saver = Saver(folder.checkpoints, config.checkpoint, engine.snapshot, self._recorder.record, steps_done)
        profiled = config.train.profile.steps if config.train.profile else None
        self._profile = Profile(profiled, folder.profile, run.marker, steps_done, run.rank, engine.wait_for_weights)
        feed, self._flops = DeviceFeed(engine.device), FlopsCounter.of(run, engine.device)
        self._held_out = HeldOutEvaluation(run, run.valid, feed) if run.valid else None
        self._batches = prefetch(loader, start, feed, self._flops, len(config.objective_kinds))
        self._status = StatusWriter(folder, config.train.steps, run.rank)
        self._clock = StepClock(engine.device)
        self._deferred: DeferredReader[StepInfo] = DeferredReader(lag=2 if engine.device.type == "cuda" else 0)
        self._phase = config.phase_at(steps_done)
        self._settings = ""  # digest of the settings that decide the batches of the phase
        self._stopping = False
        self._save_due = False

    def run(self) -> LoopEnd:
        """Train to the end; "completed", "stopped", or "spike": the run should go back.

        Raises UserError on every rank, if the run cannot continue.
        """
        with ChosenCollections() as collections:
            return self._run_steps(collections)

    def _run_steps(self, collections: ChosenCollections) -> LoopEnd:
        config, total = self._config, self._config.train.steps
        last = min(total, config.run.stop_after or total)
        try:
            while self._step < last and not self._stopping and not self.guard.rollback_due:
                step = self._load()
                self._train(step)
                collections.after_step(self._step)

                if self._is_due(config.guard.replica_check_steps):
                    self._check_replicas()

                if self._is_due(config.eval.every_steps) or self._step == total:
                    self._evaluate()

                listed = self._step == total or self._step in config.checkpoint.at_steps
                if self._is_due(config.checkpoint.every_steps) or self._save_due or listed:
                    self._save()

            self._report_steps(self._deferred.drain())
        except EndOfRun:
            self._run.marker.enter("checkpoint", self._step)
            with contextlib.suppress(UserError):  # that the save in flight failed; why the run ends comes first
                self._saver.finish()
            raise
        finally:
            self._profile.close()
            self._batches.close()
            if self._held_out:
                self._held_out.close()
        return self._end()

    def _end(self) -> LoopEnd:
        """Wait for the last checkpoint. After a spike, only finish the save in progress."""
        self._run.marker.enter("checkpoint", self._step)
        if self.guard.rollback_due:
            self._saver.finish()
        else:
            self._save_last()
            run_on_rank_zero(self._recorder.check)
        self._saver.close()
        if self.guard.rollback_due:
            return "spike"
        return "completed" if self._step >= self._config.train.steps else "stopped"

    @property
    def _step(self) -> int:
        """The number of steps done."""
        return self._state.steps_done

    def _is_due(self, every: int) -> bool:
        """Whether something is due that happens every so many steps; 0: never."""
        return every > 0 and self._step % every == 0

    # Step

    def _load(self) -> LoadedStep:
        """Wait for the batches of the next step."""
        if self._profile.before(self._step + 1):
            self._clock.pause()
        self._run.marker.enter("data", self._step + 1)
        with self._clock.wait():
            return self._batches.next()

    def _train(self, loaded: LoadedStep) -> None:
        """Take one optimizer step, and report the steps whose values have arrived."""
        info, values = self._take_step(loaded)
        self._state = replace(self._state, steps_done=self._step + 1, position=loaded.step.after)
        self._report_steps(self._deferred.push(info, values))
        if self._profile.after(self._step):
            self._clock.pause()

    def _take_step(self, loaded: LoadedStep) -> tuple[StepInfo, Tensor]:
        """The values of a step that the host knows, and those on the device."""
        config, before, step = self._config, loaded.step.before, self._step + 1
        if self._phase.end == self._step or not self._settings:
            self._enter_phase(config.phase_at(self._step))
        lr = learning_rate(config, self._step)
        batches = [batch.wait() for batch in loaded.batches]
        self._run.marker.enter("collective")
        sums = self._engine.total(self._own_sums(loaded).pack())
        weights = StepSums.packed_weights(sums, len(config.objective_kinds))
        of_objectives = loss_weights(config, self._step, loaded.step.shares)
        output = self._engine.step(batches, weights, lr, of_objectives)
        times = self._clock.end()
        info = StepInfo(
            step,
            lr,
            before,
            rows=loaded.step.after.dealt - before.dealt,
            seq_len=loaded.batches[0].seq_len,
            mask_rate=loaded.step.mask_rate,
            shares=loaded.step.shares,
            phase=self._phase.number,
            settings=self._settings,
            times=times,
            waited=self._clock.waited,
            host_behind=self._engine.host_runs_ahead and times[0].is_reached,
        )
        self._run.marker.enter("journal")
        return info, torch.cat([output, sums])

    def _enter_phase(self, phase: Phase) -> None:
        """Use the settings of a phase of the run from the next step on."""
        self._phase = phase
        self._settings = Identity.of(self._config, self._run.data, self._step + 1).batch_digest()
        model = phase.config.model
        self._engine.set_rotary_bases(model.global_rope_theta, model.local_rope_theta)

    def _own_sums(self, loaded: LoadedStep) -> StepSums:
        """This rank's part of the sums of a step."""
        seconds = [0.0] * len(self._run.hosts)
        seconds[self._run.rank] = self._engine.compute_timer.take() + self._clock.waited
        stop = float(bool(self._stop) or self._recorder.problem is not None)
        written, save_due = self._saver.poll()
        return replace(loaded.sums, stop=stop, written=written, save_due=save_due, compute_seconds=tuple(seconds))

    # Report

    def _report_steps(self, due: list[tuple[StepInfo, list[float]]]) -> None:
        """Report steps whose values have arrived. All ranks have the same values, so they decide the same."""
        config, ranks = self._config, len(self._run.hosts)
        for info, values in due:
            output = StepOutput.unpack(values, len(config.objective_kinds))
            sums = output.sums
            self._stopping = self._stopping or sums.stop > 0
            self._save_due = self._save_due or sums.save_due > 0
            self._state = replace(self._state, replaced_tokens=self._state.replaced_tokens + int(sums.replaced))
            self._status.write(info.step, self._phase.name, self.guard.history, self._saver.problem)
            metrics = step_metrics(info, output, config)
            metrics |= self._flops.metrics(sums.flops, sum(sums.predictions), info.seconds, ranks)
            times = sums.compute_seconds, info.waited, info.seconds, info.host_behind
            loss, skipped = metrics["train/loss"], output.skipped > 0
            result = StepResult(info.step, info.before, info.shape, loss, skipped, *times, info.settings)
            metrics |= self.guard.record(result)
            if config.phases:
                metrics["train/phase"] = info.phase
            if config.data.damage_budget:
                metrics["data/replaced_tokens"] = self._state.replaced_tokens
            self._recorder.record(info.step, metrics | self._epochs(info.before), info.batch(sums))
            self._check(info.step)
            if sums.written == ranks and self._saver.busy:
                self._saver.finish()
                self._clock.pause()

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
        replaced = self._state.replaced_tokens
        if replaced > self._config.data.damage_budget:
            raise EndOfRun(
                f"by step {step}, {replaced} tokens were replaced because their blocks are damaged, more than "
                f"data.damage_budget ({self._config.data.damage_budget}); the warnings above name the files: restore "
                "them, or raise the budget"
            )

    # Evaluate

    def _evaluate(self) -> None:
        """Evaluate on the held-out data, if there are any, unless a rollback is due."""
        if self._held_out is None:
            return
        self._report_steps(self._deferred.drain())
        if self.guard.rollback_due:
            return
        self._clock.pause()
        self._recorder.record(self._step, self._held_out.evaluate(self._engine, self._step))

    # Save

    def _save(self) -> None:
        """Begin a checkpoint of this step."""
        self._report_steps(self._deferred.drain())  # their sums report the save in progress
        if self.guard.rollback_due:
            return
        self._clock.pause()
        self._save_due = False
        self._run.marker.enter("checkpoint", self._step)
        self._check_weights()
        state = replace(self._state, history=self.guard.history)
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
        if self._config.guard.replica_check_steps and not self._is_due(self._config.guard.replica_check_steps):
            self._check_replicas()
        if not self._engine.weights_finite():
            raise EndOfRun(
                f"after step {self._step} some weights are not finite, so that no checkpoint is made of them; lower "
                "optim.lr or lengthen schedule.warmup_steps, and go on from the last checkpoint with "
                "run.allow_changes=true"
            )

    def _check_replicas(self) -> None:
        check_replicas(self._engine.replicas(), self._run.hosts, self._step, self._engine.device)
