"""One rank of a run, from joining the process group to the end of training."""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist

from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint
from pretrain.checkpoint.identity import batch_settings
from pretrain.config import Config, load_config, save_config
from pretrain.data import Loader, Sources, open_sources, stages_of, training_loader
from pretrain.distributed import run_on_all_ranks, run_on_rank_zero
from pretrain.distributed.rank_agreement import disk_fault, host_names, require_equal_on_ranks
from pretrain.engine import Engine, init_distributed, make_deterministic, slow_precision
from pretrain.guards import GuardHistory, ResumeState
from pretrain.guards.rollback import checkpoint_before, go_back, report_rollback
from pretrain.guards.trial_step import dry_run
from pretrain.guards.watchdog import Watchdog
from pretrain.kernels import operations
from pretrain.loop import Loop, RunParts
from pretrain.model import (
    Description,
    Encoder,
    LossOptions,
    Model,
    build,
    describe,
    digest_of,
    initial_state,
    set_compute_options,
)
from pretrain.reporting.environment import gather_environment, record_environment
from pretrain.reporting.node_metrics import SystemMetrics
from pretrain.reporting.reporter import Reporting
from pretrain.resume import find_start, start_state
from pretrain.run import EXIT_CODES, LOCK_VARIABLE, PhaseMarker, RunFolder, State
from pretrain.run.folder import refuse
from pretrain.run.start_phases import DATA, FIRST_STEP, MODEL, say_phase
from pretrain.run.stop_request import StopRequest

# What gloo and NCCL say when another rank is gone.
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")


def run_rank(config_path: Path, overrides: list[str]) -> int:
    """Train as one rank; the exit code of the process (pretrain.run.folder.EXIT_CODES)."""
    folder: RunFolder | None = None
    try:
        init_distributed()
        config = run_on_all_ranks(lambda: load_config(config_path, overrides))
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
    """Start or resume a run, and train to its end or to a request to stop; a collective."""
    if config.run.deterministic:
        make_deterministic()

    # Load the data, and the checkpoint to resume from.
    lock, run = _open_run(config, folder)
    saved = find_start(config, folder, run.data)
    loader = _open_loader(run)
    state = start_state(saved, config, run.data) if saved else _first_state(config, loader)
    run_on_rank_zero(lambda: folder.write_status("starting", state.steps_done, config.train.steps, MODEL, "none"))
    folder.claimed = True

    # Build the model and its optimizer, and try the largest step.
    _enter(folder, MODEL)
    watchdog = Watchdog(folder, run.marker, dist.get_rank(), run.hosts, config.guard.hang_seconds)
    watchdog.start()
    stop = StopRequest(folder.stop)
    engine = _build_engine(run, saved)
    _enter(folder, FIRST_STEP)
    if config.guard.dry_run:
        dry_run(engine, loader, state, config.longest_row)

    # Step, evaluate and save; after a loss spike, again from a checkpoint before it.
    reports = _Reports(run, engine, state.steps_done)
    end: State = "failed"
    try:
        while (outcome := (loop := Loop(run, engine, loader, state, stop, reports.report)).run()) == "spike":
            run.marker.enter("start")
            engine.release()
            loader = _open_loader(run)
            saved, state = _before_spike(run, saved, loop.guard.history, loader)
            report_rollback(state, reports.report)
            engine = _build_engine(run, saved)
        end = outcome

    # Report how the run ended.
    finally:
        watchdog.close()
        reports.close(end, stop)

    # Stop.
    engine.close()
    reports.check_recorded()  # on rank 0 alone: the others have nothing more to do
    if lock:
        lock.close()
    return end


def _open_run(config: Config, folder: RunFolder) -> tuple[IO[str] | None, RunParts]:
    """Lock the run folder on rank 0, and open the parts that must be the same on all ranks."""
    stages = run_on_all_ranks(lambda: stages_of(config, dist.get_world_size()))
    data, valid = run_on_all_ranks(lambda: _open_data(config))
    lock = run_on_rank_zero(lambda: _lock(folder))
    require_equal_on_ranks(config.model_dump_json(), "config")
    require_equal_on_ranks(
        f"{data.fingerprint} {data.index_fingerprint} {valid.manifest.fingerprint if valid else None}", "data set"
    )
    require_equal_on_ranks(run_on_all_ranks(lambda: batch_settings(config, data)), "collocation list")
    description = run_on_all_ranks(lambda: describe(config, data.tokenizer))
    require_equal_on_ranks(json.dumps(description, sort_keys=True), "model.config")
    run_on_rank_zero(lambda: data.check_files(config.data, valid))
    return lock, RunParts(config, folder, data, valid, stages, description, host_names(), PhaseMarker())


def _open_data(config: Config) -> tuple[Sources, Dataset | None]:
    data = open_sources(config.data)
    return data, data.open_held_out(config.data)


def _open_loader(run: RunParts) -> Loader:
    return run_on_all_ranks(lambda: training_loader(run.config, run.data, run.stages, dist.get_rank(), defer=True))


def _first_state(config: Config, loader: Loader) -> ResumeState:
    return ResumeState(0, loader.mixture.start(), init=_init(config))


def _init(config: Config) -> str | None:
    """The digest of the initial weights, the same on every rank; None for random weights."""
    if (folder := config.model.init) is None:
        return None
    digest = run_on_all_ranks(lambda: digest_of(folder))
    require_equal_on_ranks(digest, "model.init")
    return digest


def _build_engine(run: RunParts, saved: Checkpoint | None) -> Engine:
    """Create the model and its optimizer, and load the checkpoint if there is one."""
    run.marker.enter("start")
    init = None if saved else run.config.model.init
    model = run_on_all_ranks(lambda: _model(run.config, run.description, run.data, init))
    engine = Engine(run.config, model, run.marker)
    if saved:
        engine.load(saved)
    return engine


def _before_spike(
    run: RunParts, saved: Checkpoint | None, history: GuardHistory, loader: Loader
) -> tuple[Checkpoint | None, ResumeState]:
    """The resume state after a spike: from the checkpoint before it, or the start of this process."""
    found = checkpoint_before(run.folder.checkpoints, history) or saved
    then = ResumeState.of(found) if found else _first_state(run.config, loader)
    run_on_rank_zero(lambda: checkpoint.set_aside(run.folder.checkpoints, then.steps_done))
    return found, run_on_all_ranks(lambda: go_back(then, history, loader, run.config.guard.skip_steps))


class _Reports:
    """Reports of a process: the metrics of its node and, on rank 0, all others."""

    def __init__(self, run: RunParts, engine: Engine, steps_done: int):
        config, folder = run.config, run.folder
        if warning := slow_precision(config.train.precision, engine.device.type):
            _say_once(warning)
        environment = gather_environment() | {"parameters": engine.n_parameters, "data": run.data.facts()}
        run_on_rank_zero(lambda: _record(run, steps_done, environment))
        self._stop_file, self._rank_zero = folder.stop, None
        self._system = SystemMetrics(folder.system, dist.get_rank(), run.hosts, config.track.system_seconds)
        if dist.get_rank() == 0:
            self._rank_zero = Reporting(config, folder, run.data, run.valid, steps_done, environment, self._system)
        self._system.start()

    def report(self, step: int, metrics: dict[str, float], batch: dict[str, Any] | None) -> None:
        """Record the metrics of a step, and of a training step its batch."""
        if self._rank_zero:
            self._rank_zero.report(step, metrics, batch)

    def close(self, end: State, stop: StopRequest) -> None:
        """Record how the run ended."""
        self._system.close()
        if self._rank_zero:
            by_file = self._stop_file.exists()
            with contextlib.suppress(OSError):  # a full or failed disk
                self._stop_file.unlink(missing_ok=True)  # honoured, or too late
            self._rank_zero.close(end, stop.reason, retry=not by_file)

    def check_recorded(self) -> None:
        """Raise UserError if rank 0 cannot record how the run ended."""
        if self._rank_zero:
            self._rank_zero.check_recorded()


def _model(config: Config, description: Description, data: Sources, init: Path | None) -> Model:
    """The model with random weights, or weights of a Hugging Face folder; the same on every rank."""
    options = LossOptions(config.train.label_smoothing, config.train.z_loss)
    kernels = operations(config.train.fused_kernels)
    model = build(description, config.run.seed, options, kernels)
    if not isinstance(model, Encoder):
        model.check_length(config.longest_row)
    if init and isinstance(model, Encoder):
        model.load_state_dict(initial_state(init, model.shape, data.tokenizer_path, _say_once))
        model.reset_padding_rows()
    set_compute_options(model, config)
    return model


def _say_once(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, file=sys.stderr, flush=True)


def _enter(folder: RunFolder, phase: str) -> None:
    """Report on rank 0, and in the status of a run that holds its folder, the phase of the start that begins."""
    if dist.get_rank() == 0:
        say_phase(phase)
        if folder.claimed or LOCK_VARIABLE in os.environ:
            folder.enter(phase)


def _lock(folder: RunFolder) -> IO[str]:
    folder.create()
    lock = folder.lock()
    checkpoint.remove_leftovers(folder.checkpoints)
    return lock


def _record(run: RunParts, steps_done: int, environment: dict[str, Any]) -> None:
    checkpoint.set_aside(run.folder.checkpoints, steps_done)
    _copy_tokenizer(run.data.datasets[0], run.folder)
    save_config(run.config, run.folder.config)
    record_environment(run.folder.environment, environment, steps_done)


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
        with contextlib.suppress(UserError, OSError):  # a full disk, perhaps the cause of the failure
            speaks = folder.fail(reason, "fix the cause, then run the same command again", retry)
    elif speaks:
        refuse(reason, retry)
    if speaks:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    return speaks
