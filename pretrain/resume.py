"""Open a run and find its start: step 0, or an intact checkpoint with the same settings."""

import functools
import json
import re
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from data_prep.common.errors import UserError
from data_prep.common.files import write_file
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint, Identity, differences
from pretrain.config import Config, flat, save_config
from pretrain.data import BatchStage, Loader, Sources
from pretrain.distributed import all_gather_json, require_equal_on_ranks, run_on_all_ranks, run_on_rank_zero
from pretrain.engine import Engine, layout_of
from pretrain.guards import ResumeState, StepGuard, Trial, check_fits, roll_back, state_problem
from pretrain.model import (
    Candidates,
    ComputeBackends,
    FastPath,
    FlashAttention,
    KernelChoice,
    build_for_training,
    describe,
    use_path,
    weights_digest,
)
from pretrain.optim import learning_rate
from pretrain.planning import GpuMemory, Planner, micro_batch_sizes, print_warnings, run_warnings, with_micro_batch
from pretrain.reporting import record_environment
from pretrain.run import PhaseMarker, RunFolder

# The settings that decide the rows. A stored position is invalid if one of them has changed.
_ROW_SETTINGS = {
    "data.train (fingerprint)",
    "data.seq_len",
    "data.packing",
    "data.window_blocks",
    "masking.static_epochs",
    "batches",
    "run.seed",
    "plan version",
}
_ROWS_OF_PHASE = re.compile(r"phases\..*\.data\.train \(fingerprint\)$")


@dataclass(frozen=True)
class RunParts:
    """The fixed parts of a run, the same on every rank except `rank`, `lock` and `marker`.

    config: with the values that were chosen where `given` has auto.
    given: the config that the user wrote.
    data, valid: the training data, and the held-out data or None.
    stages: the parts of the run with one shape of batches each.
    description: the description of the model.
    hosts: the host of each rank.
    lock: of the run folder, on rank 0.
    marker: the current phase of this rank.
    """

    config: Config
    folder: RunFolder
    data: Sources
    valid: Dataset | None
    stages: tuple[BatchStage, ...]
    description: dict[str, Any]
    hosts: Sequence[str]
    rank: int
    lock: IO[str] | None
    marker: PhaseMarker
    given: Config


def open_run(config: Config, folder: RunFolder) -> RunParts:
    """Lock the run folder on rank 0, and open the parts that must be the same on all ranks; a collective."""
    stages = run_on_all_ranks(lambda: BatchStage.of_run(config, dist.get_world_size()))
    data = run_on_all_ranks(lambda: Sources.open(config))
    valid = run_on_all_ranks(lambda: data.open_held_out(config.data))
    lock = run_on_rank_zero(lambda: _lock(folder))
    require_equal_on_ranks(config.model_dump_json(), "config")
    contents = (data.fingerprint, data.index_fingerprint, valid.manifest.fingerprint if valid else None)
    require_equal_on_ranks(str(contents), "data set")
    require_equal_on_ranks(run_on_all_ranks(lambda: Identity.of(config, data).batch_digest()), "list of masking")
    description = run_on_all_ranks(lambda: describe(config, data.tokenizer))
    require_equal_on_ranks(json.dumps(description, sort_keys=True), "model.config")
    run_on_rank_zero(lambda: data.check_files(config.data, valid))
    hosts = []
    for host, sees_folder in all_gather_json([socket.gethostname(), folder.config.parent.is_dir()]):
        hosts.append(host)
        if not sees_folder and hosts.count(host) == 1:
            _print_once(
                f"warning: {host} does not have the run folder {folder.path} of {hosts[0]}. Its checkpoints would be "
                "in several places. Choose a run.dir that all nodes share."
            )
    return RunParts(
        config, folder, data, valid, stages, description, hosts, dist.get_rank(), lock, PhaseMarker(), config
    )


def _lock(folder: RunFolder) -> IO[str]:
    folder.create()
    lock = folder.lock()
    checkpoint.remove_leftovers(folder.checkpoints)  # before anything is written: they may have filled the disk
    return lock


def open_loader(run: RunParts) -> Loader:
    """The loader of this rank's training batches; a collective."""
    return run_on_all_ranks(lambda: Loader.for_training(run.config, run.data, run.stages, run.rank))


def find_start(config: Config, folder: RunFolder, data: Sources) -> Checkpoint | None:
    """The checkpoint to resume from, or None to start at step 0; a collective.

    Raises:
        UserError: if the checkpoint of run.resume does not exist, or does not fit the configuration.
    """
    resume, remote = config.run.resume, config.checkpoint.remote
    if resume == "never":
        run_on_rank_zero(lambda: _refuse_existing(config, folder))
        return None
    named = resume not in ("auto", "required")
    if not named and remote:
        run_on_rank_zero(lambda: _fetch(remote, folder.checkpoints))
    saved = checkpoint.newest_verified(folder.checkpoints, lambda problem: _print(f"warning: {problem}"), state_problem)
    if saved is None and resume == "required":
        raise UserError(f"{folder.path}: run.resume is required, and there is no checkpoint in it")
    if named and (saved is None or saved.state["config"]["run"]["resume"] != resume):
        # Only at the first start: later, the run has its own checkpoints and resumes from them.
        saved = _named(config, folder, Path(resume))
    if saved:
        run_on_all_ranks(lambda: check_fits(config, saved, data))
        before = Config.model_validate(saved.state["config"])
        _print_changed_phases(config, before, saved, data)
        _print_changed_schedule(config, before, saved.step)
        changed = differences(saved.state["layout"], layout_of(config))
        if changed and dist.get_rank() == 0:
            _print(f"{saved.path.name} is resharded: {'; '.join(changed.values())}")
    return saved


def _print_changed_schedule(config: Config, before: Config, step: int) -> None:
    """Print how the learning rates after `step` steps have changed."""
    now, then = config.train.steps, before.train.steps
    rates = [f"{learning_rate(one, step):.3g}" for one in (config, before)]
    if step < now and (now != then or len({*rates}) > 1):
        last = learning_rate(config, now - 1)
        _print_once(
            f"Changed schedule: {now:,} steps instead of {then:,}; the learning rate of step {step + 1:,} is "
            f"{rates[0]} instead of {rates[1]}, at the last step it is {last:.3g}"
        )


def _data_of_phases(config: Config, data: Sources) -> dict[str, str]:
    """The fingerprints of the data that phases after the first one set."""
    phases = [phase for phase in config.run_phases[1:] if "data.train" in phase.changes]
    return {phase.name: data.of_phase(phase.number).fingerprint for phase in phases}


def _print_changed_phases(config: Config, before: Config, saved: Checkpoint, data: Sources) -> None:
    """Print what has changed in phases that have not begun, which is allowed."""
    then, now = (
        {
            f"phases.{phase.name}.{key}": value
            for phase in one.run_phases
            if phase.start >= saved.step and phase.number
            for key, value in flat({"steps": phase.end - phase.start, **phase.changes}).items()
        }
        for one in (before, config)
    )
    changed = differences(then, now)
    stored, read = saved.state["data_of_phases"], _data_of_phases(config, data)
    for phase in config.run_phases:
        key, known = f"phases.{phase.name}.data.train", phase.name in stored and phase.name in read
        if known and phase.start >= saved.step and key not in changed and stored[phase.name] != read[phase.name]:
            changed[key] = f"{key} is another data set at the same path (fingerprint {read[phase.name][:16]})"
    for said in changed.values():
        _print_once(f"Changed before the phase begins: {said}")


def _fetch(remote: str, folder: Path) -> None:
    """Fetch the newest remote copy if the run folder has no checkpoint."""
    if not checkpoint.committed(folder):
        checkpoint.fetch_newest(remote, folder, _print)


def _refuse_existing(config: Config, folder: RunFolder) -> None:
    if existing := checkpoint.committed(folder.checkpoints):
        raise UserError(
            f"{existing[0][1]} exists although run.resume is never; move it away, or choose another run.dir"
        )
    if (url := config.checkpoint.remote) and checkpoint.copies(url):
        raise UserError(
            f"{url} has checkpoints although run.resume is never; move them away, or choose another checkpoint.remote"
        )


def _named(config: Config, folder: RunFolder, path: Path) -> Checkpoint:
    if path.resolve().parent != folder.checkpoints.resolve() and not config.run.trust_checkpoint:
        raise UserError(
            f"{path} belongs to another run, and this one would continue from a checkpoint of unknown origin; "
            "pass run.trust_checkpoint=true if you trust them"
        )
    path = path.resolve()  # resolves a symbolic link
    problems: list[str] = []
    found = checkpoint.first_intact(
        path.parent, [path.name], state_problem, lambda _, problem: problems.append(problem)
    )
    if found is None:
        raise UserError(f"{path}: the checkpoint named by run.resume cannot be used: {problems[0]}")
    return found


def start_state(saved: Checkpoint, config: Config, data: Sources) -> ResumeState:
    """The resume state. The stream resumes at its position, or at the next epoch if its rows have changed."""
    state = ResumeState.of(saved)
    changed = Identity.stored(saved).changes(Identity.of(config, data, saved.step, state.init))
    if not any(name in _ROW_SETTINGS or _ROWS_OF_PHASE.match(name) for name in changed):
        return replace(state, position=state.position.of_sources(len(data.datasets)))
    return replace(state, position=state.position.next_epoch(len(data.datasets)))


def first_state(config: Config, loader: Loader) -> ResumeState:
    """The state at step 0, with the digest of the initial weights, which must be the same on every rank."""
    init = config.model.init
    digest = run_on_all_ranks(lambda: weights_digest(init) if init else None)
    require_equal_on_ranks(str(digest), "model.init")
    return ResumeState(0, loader.mixture.start(), init=digest)


def state_before(
    run: RunParts,
    saved: Checkpoint | None,
    guard: StepGuard,
    loader: Loader,
    report: Callable[[int, dict[str, float], dict[str, Any] | None], None],
) -> tuple[Checkpoint | None, ResumeState]:
    """The checkpoint before a spike, or the one this process started from, and the state to resume from."""
    first, skip_steps = functools.partial(first_state, run.config, loader), run.config.guard.skip_steps
    return roll_back(run.folder.checkpoints, saved, first, guard.history, loader, skip_steps, report)


def checkpoint_state(config: Config, data: Sources, state: ResumeState) -> dict[str, Any]:
    """The state that a checkpoint stores apart from weights and optimizer, as JSON values."""
    totals = [dataset.manifest.totals for dataset in data.datasets]
    return {
        "position": state.position.to_json(),
        "replaced_tokens": state.replaced_tokens,
        "guards": state.history.to_json(),
        "identity": Identity.of(config, data, state.steps_done, state.init).settings,
        "layout": layout_of(config),
        "shape": describe(config, data.tokenizer, state.steps_done),
        "data": {
            "documents": sum(t.documents for t in totals),
            "tokens": sum(t.tokens for t in totals),
        },
        "data_of_phases": _data_of_phases(config, data),
        "config": config.model_dump(mode="json"),
    }


def build_engine(run: RunParts, saved: Checkpoint | None) -> Engine:
    """Create the model and its optimizer, and load the checkpoint if there is one; a collective."""
    run.marker.enter("start")
    init, tokenizer = None if saved else run.config.model.init, run.data.tokenizer_path
    model = run_on_all_ranks(lambda: build_for_training(run.config, run.description, tokenizer, init, _print_once))
    engine = Engine(run.config, model, run.marker)
    if saved:
        engine.load(saved)
    return engine


def smallest_gpu() -> int | None:
    """Bytes of the smallest GPU of all ranks; None on CPUs. A collective."""
    on_gpu = dist.get_backend() == "nccl"
    own = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory if on_gpu else None
    everyone = all_gather_json(own)
    return None if None in everyone else min(everyone)


def choose_micro_batch(run: RunParts, gpu_bytes: int | None) -> RunParts:
    """The run with the largest micro-batch that fits by its plan, unless the config sets one; a collective.

    Args:
        gpu_bytes: memory of the smallest GPU; None on CPUs, where a step has one micro-batch.
    """
    if gpu_bytes is None or run.given.train.micro_batch_size is not None:
        return run
    gpu = GpuMemory("the smallest GPU", gpu_bytes)
    rows = run_on_all_ranks(lambda: Planner(run.config, run.data).largest_micro_batch(len(run.hosts), gpu.usable))
    _print_once(f"Micro-batch: {rows} rows, the most that fit into {gpu_bytes / 1e9:.0f} GB by the plan")
    return _with_micro_batch(run, rows)


def _with_micro_batch(run: RunParts, rows: int) -> RunParts:
    config = with_micro_batch(run.config, rows)
    return replace(run, config=config, stages=BatchStage.of_run(config, len(run.hosts)))


def choose_path(
    run: RunParts, engine: Engine, loader: Loader, state: ResumeState, device: str, resumed: bool
) -> tuple[RunParts, KernelChoice]:
    """The run with its kernels, which the model uses from now on; a collective. Prints attention and kernels.

    Args:
        device: the type of device that decides whether faster paths are tried: "cpu" or "cuda".
        resumed: use the record of the last start, if it is of such a machine.
    """
    newest = {FlashAttention(*one) for one in all_gather_json(_installed_flash_attention())}
    flash = newest.pop() if len(newest) == 1 else FlashAttention()  # a version that every rank has
    flash.require(run.given.train.flash_attention)
    candidates = Candidates.of(run.given, device, flash.version)
    if resumed:
        recorded = all_gather_json((run.folder.read_environment() or {}).get("fast_path") if run.rank == 0 else None)
        machines = all_gather_json(_made_with(device))
        if len({*machines}) == 1:  # otherwise some ranks would compare kernels, and others not
            candidates = candidates.after_record(recorded[0], machines[0])
    choice = candidates.choice
    if choice is None:
        slow = "; torch.compile may take minutes" if candidates.paths[0].compiled else ""
        _print_once(f"Comparing {candidates.paths[0]} with the plain step{slow}")
        choice = Trial(engine, loader, state).choose_kernels(candidates)
    _print_once(ComputeBackends.of(run.given, engine.device.type, choice=choice).start_line)
    if run.given.model.arch == "auto":
        return run, choice
    train = run.config.train.model_copy(update=choice.path.as_settings())
    return replace(run, config=run.config.model_copy(update={"train": train})), choice


def fit_micro_batch(run: RunParts, engine: Engine, loader: Loader, state: ResumeState) -> tuple[RunParts, Loader]:
    """The run and its loader with a micro-batch that fits into memory, if its size was chosen; a collective.

    Under ZeRO 3 a pass exchanges weights, so that a rank without memory would leave the others waiting: the trial step
    then ends the run.
    """
    given = run.given.train.micro_batch_size is not None or run.config.train.micro_batch_size is None
    if given or run.config.zero.stage == 3:
        return run, loader
    while not Trial(engine, loader, state).fits():
        rows = run.config.train.micro_batch_size or 0
        smaller = [size for size in micro_batch_sizes(run.given, len(run.hosts)) if size < rows]
        if not smaller:
            break  # the trial step says what to do
        _print_once(f"Micro-batch: {rows} rows do not fit into memory, so {smaller[0]} are tried")
        run = _with_micro_batch(run, smaller[0])
        loader.close()
        loader = open_loader(run)
        use_path(engine.module, run.config, FastPath.of(run.config))
    return run, loader


def _installed_flash_attention() -> FlashAttention:
    """The newest version for this rank's GPU."""
    return FlashAttention.installed(torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None)


def _made_with(device: str) -> str:
    """This rank's GPU and the versions that a comparison of kernels depends on."""
    gpu = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else device
    versions = [f"{name} {version(name)}" for name in ("torch", "triton") if find_spec(name)]
    return ", ".join([gpu, *versions, *filter(None, [_installed_flash_attention().package])])


def record_start(run: RunParts, engine: Engine, steps_done: int, choice: KernelChoice) -> dict[str, Any]:
    """Record config, tokenizer and environment of this start in the run folder; a collective.

    Later checkpoints no longer count. Returns the environment.
    """
    if warning := engine.precision_warning:
        _print_once(warning)

    def record() -> None:
        checkpoint.set_aside(run.folder.checkpoints, steps_done)
        _copy_tokenizer(run.data.datasets[0], run.folder)
        save_config(run.given, run.folder.config)

    run_on_rank_zero(record)
    device = engine.device.type
    chosen = ComputeBackends.of(run.given, device, choice=choice).as_values()
    chosen |= {"fast_path": choice.as_record(_made_with(device)), "micro_batch_size": run.stages[0].micro}
    phases = [phase.name for phase in run.given.phases]
    warnings = run_on_rank_zero(lambda: run_warnings(run.given))
    if warnings and not run.folder.inherits_lock():  # otherwise the command that started this process printed them
        print_warnings(warnings)
    more = {"parameters": engine.n_parameters, "data": run.data.facts(), "phases": phases, **chosen}
    more |= {"vocabulary_size": run.data.tokenizer.vocab_size, "warnings": warnings}
    return record_environment(run.folder.environment, steps_done, more)


def _copy_tokenizer(data: Dataset, folder: RunFolder) -> None:
    """The run must not need its data set to be exported."""
    info = data.manifest.tokenizer
    if info.files:
        data.check_tokenizer()
    folder.tokenizer.mkdir(exist_ok=True)
    for name in info.files:
        write_file(folder.tokenizer / name, (data.tokenizer_path / name).read_bytes())


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_once(text: str) -> None:
    if dist.get_rank() == 0:
        _print(text)
