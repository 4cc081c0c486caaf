"""One rank of a run, from joining the process group to the end of training."""

import contextlib
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.reader import Dataset
from pretrain import checkpoint
from pretrain.agree import check_equal, disk_fault, host_names, on_main, together
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config, load_config, save_config
from pretrain.curriculum import Stage, stages_of
from pretrain.data.loader import Loader
from pretrain.data.sources import (
    Sources,
    check_files,
    held_out_loader,
    open_held_out,
    open_sources,
    training_loader,
)
from pretrain.engine import Engine, init_distributed, make_deterministic, slow_precision
from pretrain.environment import gather_environment, record_environment
from pretrain.guards.dry_run import dry_run
from pretrain.guards.history import History
from pretrain.guards.pulse import Pulse
from pretrain.guards.resume_state import ResumeState
from pretrain.guards.rollback import checkpoint_before, go_back, tell
from pretrain.guards.watchdog import Watchdog
from pretrain.identity import batch_settings
from pretrain.kernels import operations
from pretrain.loop import Loop, Report
from pretrain.model.build import Model, build, choose_ways, flops_of
from pretrain.model.description import Description, describe
from pretrain.model.encoder import Encoder
from pretrain.model.head import LossOptions
from pretrain.model.initial import initial_state
from pretrain.model.weights_file import digest_of
from pretrain.reporting import Reporting
from pretrain.resume import find_start, start_progress
from pretrain.run_folder import EXIT_CODES, LOCK_VARIABLE, RunFolder, State, refuse
from pretrain.signals import StopRequest
from pretrain.starting import DATA, FIRST_STEP, MODEL, say_phase
from pretrain.system.exchange import SystemMetrics

# What gloo and NCCL say when another rank is gone.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")


def run_rank(config_path: Path, overrides: list[str]) -> int:
    """Train as one rank; the exit code of the process (pretrain.run_folder.EXIT_CODES)."""
    folder: RunFolder | None = None
    try:
        init_distributed()
        config = together(lambda: load_config(config_path, overrides))
        folder = RunFolder(config.run.dir)
        _enter(folder, DATA)
        return EXIT_CODES[train(config, folder)]
    except UserError as error:
        _fail(folder, str(error), retry=False)
    except Exception as error:
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_PEER):
            _fail(folder, "a process of the run died (killed, or out of memory?), which ends the others too")
            return EXIT_CODES["failed"]
        if fault := disk_fault(error):
            _fail(folder, fault)
            return EXIT_CODES["failed"]
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if _fail(folder, f"rank {os.environ.get('RANK', 0)}: {reason}"):
            traceback.print_exc()
    return EXIT_CODES["failed"]


def train(config: Config, folder: RunFolder) -> State:
    """Set a run up, or take it up again, and train it; a collective."""
    if config.run.deterministic:
        make_deterministic()
    stages = together(lambda: stages_of(config, dist.get_world_size()))
    data, valid = together(lambda: _open_data(config))
    lock = on_main(lambda: _lock(folder))
    check_equal(config.model_dump_json(), "config")
    check_equal(
        f"{data.fingerprint} {data.index_fingerprint} {valid.manifest.fingerprint if valid else None}", "data set"
    )
    check_equal(together(lambda: batch_settings(config, data)), "collocation list")
    description = together(lambda: describe(config, data.tokenizer))
    check_equal(json.dumps(description, sort_keys=True), "model.config")
    on_main(lambda: check_files(config, data, valid))
    start = find_start(config, folder, data)
    session = _Session(config, folder, data, valid, stages, description, host_names(), Pulse())
    loader = session.loader()
    progress = (
        start_progress(start, config, data) if start else ResumeState(0, loader.mixture.start(), init=_init(config))
    )
    done, total = progress.steps_done, config.train.steps
    on_main(lambda: folder.write_status("starting", done, total, MODEL, "none"))
    folder.claimed = True
    _enter(folder, MODEL)
    state = session.train(start, progress, loader)
    if lock:
        lock.close()
    return state


@dataclass(frozen=True)
class _Session:
    """The parts of a run while this process trains it."""

    config: Config
    folder: RunFolder
    data: Sources
    valid: Dataset | None
    stages: tuple[Stage, ...]
    description: Description
    hosts: list[str]
    pulse: Pulse

    def train(self, start: Checkpoint | None, progress: ResumeState, loader: Loader) -> State:
        """From a checkpoint, or the beginning, to the end of the run or a request to stop."""
        config, folder, rank = self.config, self.folder, dist.get_rank()
        watchdog = Watchdog(folder, self.pulse, rank, self.hosts, config.guard.hang_seconds)
        watchdog.start()
        stop = StopRequest(folder.stop)
        engine = self.engine(start)
        if warning := slow_precision(config.train.precision, engine.device.type):
            _say_once(warning)
        _enter(folder, FIRST_STEP)
        if config.guard.dry_run:
            dry_run(engine, loader, progress, config.longest_row)
        environment = gather_environment() | {
            "parameters": engine.n_parameters,
            "data": self.data.facts(),
        }
        on_main(lambda: _record(config, folder, self.data, progress.steps_done, environment))
        done = progress.steps_done
        system = SystemMetrics(folder.system, rank, self.hosts, config.track.system_seconds)
        reporting = Reporting(config, folder, self.data, self.valid, done, environment, system) if rank == 0 else None
        report = reporting.report if reporting else lambda step, metrics, batch: None
        state: State = "failed"
        system.start()
        try:
            while (outcome := (loop := self.loop(engine, loader, report, stop)).run(progress)) == "spike":
                loop.saver.close()
                self.pulse.enter("start")
                engine.release()
                loader = self.loader()
                start, progress = self.before_spike(start, loop.judge.history, loader)
                tell(progress, report)
                engine = self.engine(start)
            loop.saver.close()
            state = outcome
        finally:
            watchdog.close()
            system.close()
            if reporting:
                by_file = folder.stop.exists()
                with contextlib.suppress(OSError):  # a disk that takes no change
                    folder.stop.unlink(missing_ok=True)  # honoured, or too late
                reporting.close(state, stop.reason, retry=not by_file)
        engine.close()
        if reporting:
            reporting.check_recorded()  # on rank 0 alone: the others have nothing more to do
        return state

    def loader(self) -> Loader:
        return together(lambda: training_loader(self.config, self.data, self.stages, dist.get_rank(), defer=True))

    def engine(self, start: Checkpoint | None) -> Engine:
        """The model, from a checkpoint or as it begins."""
        self.pulse.enter("start")
        init = None if start else self.config.model.init
        model = together(lambda: _model(self.config, self.description, self.data, init))
        engine = Engine(self.config, model, self.pulse)
        if start:
            engine.load(start)
        return engine

    def loop(self, engine: Engine, loader: Loader, report: Report, stop: StopRequest) -> Loop:
        valid, rank, count = self.valid, dist.get_rank(), flops_of(self.description)
        held_out = together(lambda: held_out_loader(self.config, valid, self.stages, rank) if valid else None)
        return Loop(self.config, self.folder, self.data, engine, loader, held_out, count, report, stop, self.hosts)

    def before_spike(
        self, start: Checkpoint | None, history: History, loader: Loader
    ) -> tuple[Checkpoint | None, ResumeState]:
        """The place to resume from after a spike: the checkpoint before it, or the start of this process."""
        found = checkpoint_before(self.folder.checkpoints, history) or start
        then = ResumeState.of(found) if found else ResumeState(0, loader.mixture.start(), init=_init(self.config))
        on_main(lambda: checkpoint.set_aside(self.folder.checkpoints, then.steps_done))
        return found, together(lambda: go_back(then, history, loader, self.config.guard.skip_steps))


def _open_data(config: Config) -> tuple[Sources, Dataset | None]:
    data = open_sources(config.data)
    return data, open_held_out(config.data, data)


def _init(config: Config) -> str | None:
    """The digest of the weights to begin with, the same on every rank; None for random ones."""
    if (folder := config.model.init) is None:
        return None
    digest = together(lambda: digest_of(folder))
    check_equal(digest, "model.init")
    return digest


def _model(config: Config, description: Description, data: Sources, init: Path | None) -> Model:
    """The model with random weights, or weights of a Hugging Face folder; the same on every rank."""
    options = LossOptions(config.train.label_smoothing, config.train.z_loss)
    kernels = operations(config.train.fused_kernels)
    model = build(description, config.run.seed, options, kernels)
    if not isinstance(model, Encoder):
        model.check_length(config.longest_row)
    if init and isinstance(model, Encoder):
        model.load_state_dict(initial_state(init, model.shape, data.tokenizer_path, _say_once))
        model.neutralize_padding()
    choose_ways(model, config)
    return model


def _say_once(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, file=sys.stderr, flush=True)


def _enter(folder: RunFolder, phase: str) -> None:
    """Report on rank 0, and in the status of a run that holds its folder, which phase of the start begins."""
    if dist.get_rank() == 0:
        say_phase(phase)
        if folder.claimed or LOCK_VARIABLE in os.environ:
            folder.enter(phase)


def _lock(folder: RunFolder) -> IO[str]:
    folder.create()
    lock = folder.lock()
    checkpoint.remove_leftovers(folder.checkpoints)
    return lock


def _record(config: Config, folder: RunFolder, data: Sources, steps_done: int, environment: dict[str, Any]) -> None:
    checkpoint.set_aside(folder.checkpoints, steps_done)
    _copy_tokenizer(data.datasets[0], folder)
    save_config(config, folder.config)
    record_environment(folder.environment, environment, steps_done)


def _copy_tokenizer(data: Dataset, folder: RunFolder) -> None:
    """The run must not need its data set to be exported."""
    info = data.manifest.tokenizer
    if info.files:
        data.check_tokenizer()
    folder.tokenizer.mkdir(exist_ok=True)
    for name in info.files:
        with atomic_writer(folder.tokenizer / name) as file:
            file.write((data.tokenizer_path / name).read_bytes())


def _fail(folder: RunFolder | None, reason: str, retry: bool = True) -> bool:
    """Print a failure and record it in status.json, once over all ranks; True on the rank that did.

    Before the run folder is claimed, all ranks fail alike and rank 0 speaks; status.json is then not this run's.
    """
    speaks = os.environ.get("RANK", "0") == "0"
    if folder is not None and folder.claimed:
        with contextlib.suppress(UserError, OSError):  # a full disk, perhaps the very reason
            speaks = folder.fail(reason, "fix the cause, then run the same command again", retry)
    elif speaks:
        refuse(reason, retry)
    if speaks:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    return speaks
