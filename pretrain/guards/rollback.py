"""Going back to the checkpoint before a loss spike, and on past the batches around it.

After PaLM (Chowdhery et al., 2022, section 5.1): its authors went on from a checkpoint before the spike without the
batches seen before and during it, and the spike did not come back.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretrain import checkpoint
from pretrain.checkpoint.choose_checkpoint import committed_on_rank_zero, verify_together
from pretrain.data import Loader
from pretrain.guards.guard_history import GuardHistory, Rollback
from pretrain.guards.resume_state import ResumeState
from pretrain.guards.saved_state import state_problem


def checkpoint_before(folder: Path, history: GuardHistory) -> checkpoint.Checkpoint | None:
    """The newest intact checkpoint whose weights are older than those of the spike's first step; a collective.

    If there is none, the oldest one; None if there is no checkpoint.
    """
    assert history.spike
    entries = committed_on_rank_zero(folder)
    before = [entry for entry in entries if entry[0] < history.spike.step - 1]
    for _, path in before + entries[: len(entries) - len(before)][::-1]:
        if verify_together(path) is None and state_problem(found := checkpoint.read(path)) is None:
            return found
    return None


def go_back(then: ResumeState, history: GuardHistory, loader: Loader, steps: int) -> ResumeState:
    """How the run goes on.

    Args:
        then: its progress at the checkpoint.
        history: what its guards know now.
        loader: knows how far steps read.
        steps: those after the spike's first one whose batches are left out too.
    """
    assert history.spike
    spike, first = history.spike, then.position
    skipped = loader.skip(spike.step - 1, spike.position, steps + 1, to=then.steps_done)
    position = max(first, skipped, key=lambda position: position.dealt)
    made = Rollback(spike.step, then.steps_done, first.dealt, position.dealt)
    # What the checkpoint remembers, but for rollbacks: those after it was made are not in it.
    return replace(then, position=position, history=replace(then.history, rollbacks=(*history.rollbacks, made)))


def tell(state: ResumeState, report: Callable[[int, dict[str, float], dict[str, Any] | None], None]) -> None:
    """Say that a run has gone back, in the log and, at the step of the spike, in the journal."""
    made = state.history.rollbacks[-1]
    if dist.get_rank() == 0:
        print(f"warning: went back {made} left out (guard.rollback)", file=sys.stderr, flush=True)
        rows = float(made.next_row - made.first_row)
        with contextlib.suppress(OSError):  # a full disk: the journal keeps the line for later
            report(made.spike, {"train/rollback_to": float(made.to), "train/rows_left_out": rows}, None)
