"""Entry point of a rank: `deepspeed --module pretrain.train --config CONFIG [section.key=value ...]`.

Rooms import what they export at its first use. So this process says what it does, and ends with its parent, before it
imports what takes seconds.
"""

import os
import sys

if __name__ == "__main__" and not sys.path[0] == os.getcwd() == os.path.dirname(os.path.dirname(__file__)):
    # `deepspeed --module` and `torchrun -m` put the working folder first, where a user's file may be called as a module
    # of torch. A source checkout stays: it need not be installed.
    if sys.path[0] == os.getcwd() and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    os.environ["PYTHONSAFEPATH"] = "1"  # for the programs that PyTorch starts

import argparse
import contextlib
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pretrain.distributed
import pretrain.engine
import pretrain.guards
import pretrain.reporting
from data_prep.common.errors import UserError
from data_prep.common.output import guard_output
from data_prep.common.processes import die_with_parent, leave
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.distributed import Threads, local_processes
from pretrain.run import EXIT_CODES, RunFolder, StartPhase, State, StopRequest, report_failure

if TYPE_CHECKING:
    from pretrain.checkpoint import Checkpoint
    from pretrain.data import Loader
    from pretrain.reporting import Observer
    from pretrain.resuming import ResumeState
    from pretrain.setup import RunParts


def main(observers: "Sequence[Observer]" = ()) -> int:
    """Train as one rank; the exit code is 0 completed, 75 stopped on request, 1 failed.

    observers: further reports of the run.
    """
    parser = argparse.ArgumentParser(prog="pretrain.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # set by deepspeed
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    die_with_parent()
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    if not sys.warnoptions:  # a warning of torch about DeepSpeed that users cannot act on
        warnings.simplefilter("ignore", FutureWarning)
    threads = Threads.of(local_processes(os.environ), os.environ)
    if os.environ.get("RANK", "0") == "0" and not StartPhase.has_begun():
        number = os.environ.get("WORLD_SIZE", 1)
        StartPhase.begin(f"Starting a run with {number} processes, {threads}.")
    # Before PyTorch is imported, which reads them.
    os.environ.update(threads.settings() | allocator_settings(os.environ))
    pretrain.engine.import_deepspeed()
    return run_rank(arguments.config, arguments.overrides, observers)


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of PyTorch's memory on a GPU; none if the user set one of them.

    Segments that grow do not break into pieces of wrong sizes, so the allocator need not stop a step to free them.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    return {} if any(name in environment for name in names) else {names[0]: "expandable_segments:True"}


def run_rank(config_path: Path, overrides: list[str], observers: "Sequence[Observer]" = ()) -> int:
    """Train as one rank; the exit code of the process (pretrain.run.EXIT_CODES)."""
    folder: RunFolder | None = None  # of a run that has recorded its start
    last = contextlib.ExitStack()  # what a failing run does after it has reported the failure
    guard_output(has_result=False)
    try:
        pretrain.engine.init_distributed(wants_determinism(config_path, overrides))
        config = pretrain.distributed.run_on_all_ranks(lambda: load_config(config_path, overrides))
        run, saved, loader, state = start(config)
        folder = run.folder
        return EXIT_CODES[train(run, saved, loader, state, last, observers)]
    except Exception as error:
        cause = pretrain.distributed.known_cause(error)
        reason = cause or f"rank {os.environ.get('RANK', 0)}: {type(error).__name__}: {error}".splitlines()[0]
        if report_failure(folder, reason, retry=not isinstance(error, UserError)) and not cause:
            traceback.print_exc()
    last.close()
    return EXIT_CODES["failed"]


def wants_determinism(config_path: Path, overrides: list[str]) -> bool:
    """Whether run.deterministic is true, before the ranks can exchange anything.

    False for an unusable config: the ranks report it together afterwards.
    """
    try:
        return load_config(config_path, overrides).run.deterministic
    except UserError:
        return False


def start(config: Config) -> "tuple[RunParts, Checkpoint | None, Loader, ResumeState]":
    """Load the data and the checkpoint to resume from, and record the start of the run; a collective."""
    from pretrain.resuming import find_start, first_state, start_state
    from pretrain.setup import open_loader, open_run
    from pretrain.trial import choose_micro_batch, installed_flash_attention, smallest_gpu

    folder = RunFolder(config.run.dir)
    StartPhase.DATA.enter(folder if folder.inherits_lock() else None)
    installed_flash_attention(config.train.flash_attention)
    run = choose_micro_batch(open_run(config, folder), smallest_gpu())
    saved = find_start(config, folder, run.data)
    loader = open_loader(run)
    state = start_state(saved, config, run.data) if saved else first_state(config, loader)
    pretrain.distributed.run_on_rank_zero(
        lambda: folder.write_status("starting", state.steps_done, config.train.steps, StartPhase.MODEL.value, "none")
    )
    return run, saved, loader, state


def train(
    run: "RunParts",
    saved: "Checkpoint | None",
    loader: "Loader",
    state: "ResumeState",
    last: contextlib.ExitStack,
    observers: "Sequence[Observer]" = (),
) -> State:
    """Train to the end of the run, or to a request to stop; a collective.

    Args:
        last: gets what remains to be done after the report of a failure.
        observers: further reports of the run.
    """
    from pretrain.loop import Loop
    from pretrain.resuming import roll_back
    from pretrain.setup import build_engine, open_loader, record_start
    from pretrain.trial import Trial, choose_kernels, fit_micro_batch

    # Build the model and its optimizer, choose its kernels, and try the largest step.
    config, folder = run.config, run.folder
    StartPhase.MODEL.enter(folder)
    watchdog = pretrain.guards.Watchdog(folder, run.marker, run.rank, run.hosts, config.guard.hang_seconds)
    watchdog.start()
    stop = StopRequest(folder.stop)
    engine = build_engine(run, saved)
    StartPhase.FIRST_STEP.enter(folder)
    run, kernels = choose_kernels(run, engine, loader, state, resumed=saved is not None)
    config = run.config
    if config.guard.dry_run:
        run, loader = fit_micro_batch(run, engine, loader, state)
        Trial(config, engine, loader, state).run_step()

    # Step, evaluate and save; after a loss spike, again from a checkpoint before it.
    environment = record_start(run, engine, state.steps_done, kernels)
    reports = pretrain.reporting.Reports(
        run.config, folder, run.rank, run.hosts, run.data, run.valid, state.steps_done, environment, observers
    )
    end: State = "failed"
    try:
        while True:
            loop = Loop(run, engine, loader, state, stop, reports.report)
            outcome = loop.run()
            if outcome != "spike":
                end = outcome
                break

            # Go back to a checkpoint before the spike.
            run.marker.enter("start")
            engine.release()
            loader = open_loader(run)
            checkpoints, history = folder.checkpoints, loop.guard.history
            saved, state = roll_back(config, checkpoints, saved, history, loader, reports.report)
            engine = build_engine(run, saved)

    # Report how the run ended.
    finally:
        watchdog.close()
        reports.close(end, stop.reason)
        if end == "failed":
            last.callback(reports.close_tracking, end)

    # Stop.
    engine.close()
    reports.check_recorded()  # on rank 0 alone: the others have nothing more to do
    if run.lock:
        run.lock.close()
    return end


if __name__ == "__main__":
    leave(main())
