"""The step loop: next batch, step, journal; evaluate, checkpoint and stop on schedule."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from data_prep.errors import UserError
from pretrain.agree import EndOfRun, on_main
from pretrain.checkpoint.folder import name_of
from pretrain.checkpoint.remote import RemoteCopies
from pretrain.checkpoint.saver import Saver
from pretrain.config import Config
from pretrain.data.batch import Batch
from pretrain.data.checksum import batch_checksum
from pretrain.data.feed import DeviceBatch, DeviceFeed, device_masking
from pretrain.data.loader import Loader, Step
from pretrain.data.mixture import MixturePosition
from pretrain.data.prefetch import Prefetcher
from pretrain.data.sources import Sources
from pretrain.engine import Engine
from pretrain.faults import Faults
from pretrain.guards.history import History, Place
from pretrain.guards.judge import Judge, Measured
from pretrain.guards.replicas import check_replicas
from pretrain.guards.resume_state import ResumeState
from pretrain.identity import batch_settings
from pretrain.late import LateReader
from pretrain.model.flops import peak_tflops
from pretrain.profiling import Profile
from pretrain.resume import checkpoint_state
from pretrain.run_folder import RunFolder, State
from pretrain.samples import Samples
from pretrain.schedule import lr_factor
from pretrain.signals import StopRequest

_STATUS_SECONDS = 5.0
CountFlops = Callable[[NDArray[np.int64], int], float]
Report = Callable[[int, dict[str, float], dict[str, Any] | None], None]
Outcome = State | Literal["spike"]


@dataclass(frozen=True)
class _Fed:
    """A step with its batches on their way to the device, and this rank's sums over them: predictions, real tokens,
    tokens that stand in for damaged ones, checksums, and operations but for predictions. Where the device masks, it
    knows the predictions and checksums, and they are 0 here."""

    step: Step
    batches: list[DeviceBatch]
    counts: list[float]


@dataclass(frozen=True)
class _Label:
    """What the host knows of a step when its device values are still on their way."""

    step: int
    lr: float
    before: MixturePosition
    rows: int
    seq_len: int
    mask_rate: float
    seconds: float
    waited: float


class Loop:
    """One rank's training, from where a run stands to its end or to a request to stop.

    Args:
        data: the data sets, by which checkpoints are told apart.
        engine, loader: what trains, and on what.
        valid: batches of the held-out set, or None.
        count_flops: operations of a micro-batch, by its documents' lengths and its predictions; None if not known.
        report: is given the metrics of a step, and of a training step its batch (journal.Entry), on rank 0.
        stop: whether somebody asked to stop.
        hosts: where each rank is.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        data: Sources,
        engine: Engine,
        loader: Loader,
        valid: Loader | None,
        count_flops: CountFlops | None,
        report: Report,
        stop: StopRequest,
        hosts: Sequence[str],
    ):
        self.config, self.folder, self.data, self.engine = config, folder, data, engine
        self.loader, self.valid, self.report = loader, valid, report
        self.stop = stop
        self.stopping = self.save_due = False
        self.replaced_tokens = 0
        self._init: str | None = None
        self._compared: int | None = None  # the step after which the ranks' weights were compared last
        self.late: LateReader[_Label] = LateReader(lag=2 if engine.device.type == "cuda" else 0)
        self.is_main = dist.get_rank() == 0
        self.judge = Judge(config.guard, folder.path, History(), hosts, self.is_main)
        self._hosts, self._faults = hosts, Faults(dist.get_rank())
        self.saver: Saver
        self._profile: Profile
        self._feed = DeviceFeed(engine.device, device_masking(loader.objective, engine.device, config.longest_row))
        self._samples = self._new_samples()
        self._count_flops, self._peak = count_flops, _peak(engine.device)
        self._settings = batch_settings(config, data)
        self._last_status = 0.0
        self._waited = 0.0  # for data, in the last step
        self._unwritable: str | None = None  # what rank 0 cannot write though it must
        self._last_end: float | None = None  # of the last step, None after something else took time

    def run(self, progress: ResumeState) -> Outcome:
        """Train on from `progress` to the end; "completed", "stopped", or "spike": the run should go back.

        Raises:
            UserError: on every rank, if the run cannot go on.
        """
        total = self.config.train.steps
        steps_done, position = progress.steps_done, progress.position
        self.replaced_tokens, self._init = progress.replaced_tokens, progress.init
        self.judge.history = progress.history
        self.saver = self._new_saver(steps_done)
        self._profile = Profile(
            self.config.train.profile, self.folder.profile, self.engine.pulse, self.engine.device, steps_done
        )
        prefetcher = Prefetcher(self.loader, steps_done, position, self._prepare)
        try:
            while steps_done < total and not self.stopping and not self.judge.rollback_due:
                step = self._profiled_step(prefetcher, steps_done)
                steps_done, position = steps_done + 1, step.after
                if _is_due(self.config.guard.replica_check_steps, steps_done):
                    self._check_replicas(steps_done)
                if steps_done % self.config.eval.every_steps == 0 or steps_done == total:
                    self._evaluate(steps_done)
                if steps_done % self.config.checkpoint.every_steps == 0 or self.save_due or steps_done == total:
                    self._checkpoint(steps_done, position)
            self._finish(self.late.drain())
        except EndOfRun:
            self.engine.pulse.enter("checkpoint", steps_done)
            with contextlib.suppress(UserError):  # that the save in flight failed; why the run ends comes first
                self.saver.finish()
            raise
        finally:
            self._profile.close()
            prefetcher.close()
            if self._samples:
                self._samples.close()
            if self.valid:
                self.valid.close()
        self.engine.pulse.enter("checkpoint", steps_done)  # one may be in flight
        if self.judge.rollback_due:
            self.saver.finish()  # a checkpoint of later steps is set aside as any other
            return "spike"
        self._save_last(steps_done, position)
        on_main(self._check_written)
        return "completed" if steps_done >= total else "stopped"

    def _prepare(self, step: Step) -> _Fed:
        """In the prefetch thread."""
        counts = [
            (b.n_predictions, b.n_tokens, b.n_replaced, 0 if b.later else batch_checksum(b), self._flops(b))
            for b in step.batches
        ]
        return _Fed(
            step, [self._feed(batch) for batch in step.batches], [sum(count) for count in zip(*counts, strict=True)]
        )

    def _profiled_step(self, prefetcher: Prefetcher[_Fed], steps_done: int) -> Step:
        if self._profile.before(steps_done + 1):
            self._last_end = None
        step = self._train_step(prefetcher, steps_done)
        if self._profile.after(steps_done + 1):
            self._last_end = None
        return step

    def _train_step(self, prefetcher: Prefetcher[_Fed], steps_done: int) -> Step:
        start, pulse = time.monotonic(), self.engine.pulse
        pulse.enter("data", steps_done + 1)
        self._faults.before_step(steps_done + 1, self.engine.module)
        fed = prefetcher.next()
        waited = time.monotonic() - start
        since, self._last_end = self._last_end or start, None
        lr = self.config.optim.lr * lr_factor(self.config.schedule, steps_done, self.config.train.steps)
        lr *= self._faults.lr_factor(fed.step.before.dealt)
        batches = [batch.wait() for batch in fed.batches]
        pulse.enter("collective")
        own = [0.0] * len(self._hosts)
        own[dist.get_rank()] = self.engine.own_time.take() + self._waited
        stop = float(bool(self.stop) or self._unwritable is not None)
        flags = [stop, *self.saver.poll(), *own]
        counts = self.engine.total([*fed.counts, *flags], _late_counts(batches, len(flags)))
        norms_due = _is_due(self.config.track.group_norms_every, steps_done + 1)
        values = self.engine.step(batches, counts[0], lr, group_norms=norms_due)
        self._faults.after_step(steps_done + 1, self.engine.module)
        self._last_end, self._waited = time.monotonic(), waited
        rows, seq_len = fed.step.after.dealt - fed.step.before.dealt, fed.batches[0].seq_len
        rate, seconds = fed.step.mask_rate, self._last_end - since
        label = _Label(steps_done + 1, lr, fed.step.before, rows, seq_len, rate, seconds, waited)
        pulse.enter("journal")
        self._finish(self.late.push(label, torch.cat([values[:4], counts, values[4:]])))
        return fed.step

    def _finish(self, due: list[tuple[_Label, list[float]]]) -> None:
        """Report steps whose values have arrived. Every rank sees the same values and so decides alike."""
        for label, (loss, correct, grad_norm, skipped, predictions, tokens, replaced, checksum, flops, *flags) in due:
            stops, written, save_due, *rest = flags
            own, norms = rest[: len(self._hosts)], rest[len(self._hosts) :]
            self.stopping = self.stopping or stops > 0
            self.save_due = self.save_due or save_due > 0
            self.replaced_tokens += int(replaced)
            loss /= max(predictions, 1)
            self._write_status(label.step)
            metrics = {
                "train/loss": loss,
                "train/masked_accuracy": correct / max(predictions, 1),
                "train/learning_rate": label.lr,
                "train/mask_rate": label.mask_rate,
                "train/grad_norm": grad_norm,
                "data/seq_len": label.seq_len,
                "speed/tokens_per_second": tokens / label.seconds,
                "speed/data_wait": label.waited / label.seconds,
                "speed/step_seconds": label.seconds,
            }
            if norms:
                metrics |= {f"grad_norm/{group}": n for group, n in zip(self.engine.groups, norms, strict=True)}
            metrics |= self._operations(flops, predictions, label.seconds)
            place, shape = Place(label.step, label.before), (label.rows, label.seq_len)
            metrics |= self.judge.see(Measured(place, shape, loss, skipped > 0, own, label.waited, label.seconds))
            if self.config.data.damage_budget:
                metrics["data/replaced_tokens"] = self.replaced_tokens
            if self.is_main:
                batch = {
                    "position": label.before.to_json(),
                    "seq_len": label.seq_len,
                    "rows": label.rows,
                    "mask_rate": label.mask_rate,
                    "checksum": int(checksum),
                    "replaced": int(replaced),
                    "settings": self._settings,
                }
                self._report(label.step, metrics | self._epochs(label.before), batch)
            self._check(label.step)
            if written == dist.get_world_size() and self.saver.busy:
                self.saver.finish()
                self._last_end = None

    def _flops(self, batch: Batch) -> float:
        if self._count_flops is None:
            return 0.0
        pad = self.data.tokenizer.special_ids["pad"]
        return self._count_flops(batch.document_lengths(pad), 0)

    def _operations(self, flops: float, predictions: float, seconds: float) -> dict[str, float]:
        """What each device computes, and its share of what it could: model FLOPs utilization."""
        if self._count_flops is None:
            return {}
        flops += self._count_flops(np.zeros(0, np.int64), int(predictions))
        tflops = flops / seconds / dist.get_world_size() / 1e12
        return {"speed/tflops": tflops} | ({"speed/mfu": tflops / self._peak} if self._peak else {})

    def _epochs(self, position: MixturePosition) -> dict[str, float]:
        """How often each source has been read."""
        streams = self.loader.mixture.streams
        read = [stream.progress(place) for stream, place in zip(streams, position.sources, strict=True)]
        if len(read) == 1:
            return {"data/epoch": read[0]}
        return {f"data/epoch/{name}": epochs for name, epochs in zip(self.data.names, read, strict=True)}

    def _check(self, step: int) -> None:
        """End a run that cannot go on, on all ranks at the same step."""
        self.judge.check()
        if self.replaced_tokens > self.config.data.damage_budget:
            raise EndOfRun(
                f"by step {step}, {self.replaced_tokens} tokens stood in for those of damaged blocks, more than "
                f"data.damage_budget ({self.config.data.damage_budget}); the warnings above name the files: restore "
                "them, or raise the budget"
            )

    def _evaluate(self, step: int) -> None:
        if self.valid is None:
            return
        self._finish(self.late.drain())
        start, self._last_end = time.monotonic(), None
        loss, correct, predictions = self.engine.evaluate(self._held_out(step)).tolist()
        metrics = {"eval/loss": loss / max(predictions, 1), "eval/masked_accuracy": correct / max(predictions, 1)}
        if self.config.optim.ema is not None:
            loss, _, predictions = self.engine.evaluate(self._held_out(step), averaged=True).tolist()
            metrics["eval/ema_loss"] = loss / max(predictions, 1)
        if self._samples:
            self._samples.record(self.engine, step)
        self._report(step, metrics | {"eval/seconds": time.monotonic() - start})

    def _new_samples(self) -> Samples | None:
        if self.valid is None or not self.config.eval.samples:
            return None
        return Samples(self.config, self.valid, self._feed, self.folder.predictions if self.is_main else None)

    def _new_saver(self, steps_done: int) -> Saver:
        settings, start = self.config.checkpoint, self.folder.checkpoints / name_of(steps_done)
        remote = None
        if settings.remote and self.is_main:
            remote = RemoteCopies(settings, steps_done, start if start.exists() else None)
        saver = Saver(self.folder.checkpoints, settings, self.engine.snapshot, self._report, remote)
        saver.saved_step = steps_done
        return saver

    def _held_out(self, step: int) -> Iterator[DeviceBatch]:
        assert self.valid is not None
        return (self._feed(batch).wait() for batch in self.valid.held_out(step, self.config.eval.rows))

    def _checkpoint(self, step: int, position: MixturePosition) -> None:
        self._finish(self.late.drain())  # with what it says of the save in flight
        if self.judge.rollback_due:
            return
        self._last_end, self.save_due = None, False
        self.engine.pulse.enter("checkpoint", step)
        self._check_weights(step)
        progress = ResumeState(step, position, self.replaced_tokens, self._init, self.judge.history)
        self.saver.begin(step, checkpoint_state(self.config, self.data, progress))

    def _save_last(self, step: int, position: MixturePosition) -> None:
        """Wait for a checkpoint of the last step, tried once more if it failed."""
        self.saver.finish()
        if self.saver.saved_step != step:
            self._checkpoint(step, position)
            self.saver.finish()
        if self.saver.saved_step != step:
            raise UserError(f"{self.saver.problem}, and it was the last; make room, and run the same command again")

    def _report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None = None) -> None:
        """On rank 0. A journal that cannot be written ends the run, but not while a checkpoint may hold the room."""
        if not self.is_main:
            return
        try:
            self.report(step, metrics, batch)
        except OSError as error:
            if not self.saver.busy:
                self._unwritable = f"{self.folder.journal} cannot be written ({error.strerror})"

    def _check_written(self) -> None:
        if self._unwritable:
            raise UserError(f"{self._unwritable}; make room, and run the same command again")

    def _check_weights(self, step: int) -> None:
        """No checkpoint is made of weights that are worth nothing."""
        if self.config.guard.replica_check_steps:
            self._check_replicas(step)
        if not self.engine.weights_finite():
            raise EndOfRun(
                f"after step {step} some weights are not finite, so that no checkpoint is made of them; lower optim.lr "
                "or lengthen schedule.warmup_steps, and go on from the last checkpoint with run.allow_changes=true"
            )

    def _check_replicas(self, step: int) -> None:
        if step != self._compared:
            check_replicas(self.engine.replicas(), self._hosts, step, self.engine.device)
            self._compared = step

    def _write_status(self, step: int) -> None:
        now = time.monotonic()
        if self.is_main and now - self._last_status >= _STATUS_SECONDS:
            self._last_status = now
            problem = self.saver.problem
            said = (f", but {problem}", "make room, or repair the disk") if problem else ("", "none")
            reason = f"training{self.judge.history}{said[0]}"
            try:
                self.folder.progress(step, self.config.train.steps, reason, said[1])
            except OSError as error:
                print(f"warning: {self.folder.status} was not written ({error.strerror})", file=sys.stderr, flush=True)


def _is_due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _late_counts(batches: list[DeviceBatch], flags: int) -> torch.Tensor | None:
    """Predictions and checksums of batches that were masked on the device, in the places of _Fed.counts and flags."""
    late = [batch.late for batch in batches if batch.late is not None]
    if not late:
        return None
    predictions, checksum = torch.stack(late).sum(0)
    nothing = torch.zeros_like(checksum)
    return torch.stack([predictions, nothing, nothing, checksum, nothing, *[nothing] * flags])


def _peak(device: torch.device) -> int | None:
    return peak_tflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
