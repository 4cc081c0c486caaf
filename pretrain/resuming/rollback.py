"""Roll back to the checkpoint before a loss spike, and skip the batches around the spike.

Source: PaLM (Chowdhery et al., 2022, section 5.1). Its authors restarted from a checkpoint before the spike and skipped
the batches around it; the spike did not return.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from pretrain.checkpoint import Checkpoint, committed, first_intact, set_aside
from pretrain.config import Config
from pretrain.data import Loader
from pretrain.distributed import print_on_rank_zero, run_on_all_ranks, run_on_rank_zero
from pretrain.guards import GuardHistory, Rollback
from pretrain.resuming.resume_state import ResumeState, state_problem
from pretrain.resuming.start_state import first_state
from pretrain.run import RecordEntry


def roll_back(
    config: Config, folder: Path, start: Checkpoint | None, history: GuardHistory, loader: Loader, report: RecordEntry
) -> tuple[Checkpoint | None, ResumeState]:
    """Go back to the checkpoint before a spike; a collective. Later checkpoints no longer count.

    Args:
        folder: RUN/checkpoints.
        start: the checkpoint from which this process started; used if no checkpoint in the folder is intact.
        history: the current state of the guards.
        loader: computes how many rows steps read.
        report: records the rollback in the journal, at the step of the spike.

    Returns:
        The checkpoint to load, or None for step 0, and the state from which the run resumes.
    """
    saved = _checkpoint_before(folder, history) or start
    then = ResumeState.of(saved) if saved else first_state(config, loader)
    run_on_rank_zero(lambda: set_aside(folder, then.steps_done))
    state = run_on_all_ranks(lambda: _state_after(then, history, loader, config.guard.skip_steps))
    _report(state, report)
    return saved, state


def _checkpoint_before(folder: Path, history: GuardHistory) -> Checkpoint | None:
    """The newest intact checkpoint older than the weights of the spike's first step; a collective.

    Without one, the oldest intact checkpoint; None if no checkpoint is intact.
    """
    assert history.spike
    newest_before = history.spike.step - 1

    def distance(step: int) -> tuple[bool, int]:
        return step >= newest_before, abs(newest_before - step)

    nearest = sorted(committed(folder), key=lambda saved: distance(saved[0]))
    return first_intact(folder, [path.name for _, path in nearest], state_problem)


def _state_after(then: ResumeState, history: GuardHistory, loader: Loader, skip_steps: int) -> ResumeState:
    """The state of the checkpoint, with a position behind the batches of the spike."""
    assert history.spike
    spike, first = history.spike, then.position
    skipped = loader.skip(spike.step - 1, spike.position, skip_steps + 1, to=then.steps_done)
    position = max(first, skipped, key=lambda position: position.dealt)
    made = Rollback(spike.step, then.steps_done, first.dealt, position.dealt)
    # The history of the checkpoint, with all rollbacks: it lacks the later ones.
    return replace(then, position=position, history=replace(then.history, rollbacks=(*history.rollbacks, made)))


def _report(state: ResumeState, report: RecordEntry) -> None:
    made = state.history.rollbacks[-1]
    print_on_rank_zero(f"warning: went back {made} left out (guard.rollback)")
    if dist.get_rank() == 0:
        rows = float(made.next_row - made.first_row)
        with contextlib.suppress(OSError):  # a full disk: the journal keeps the line and writes it later
            report(made.spike, {"train/rollback_to": float(made.to), "train/rows_left_out": rows}, None)
