"""Roll back to the checkpoint before a loss spike, and skip the batches around the spike.

Source: PaLM (Chowdhery et al., 2022, section 5.1). Its authors restarted from a checkpoint before the spike and skipped
the batches around it; the spike did not return.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretrain.checkpoint import Checkpoint, committed, first_intact
from pretrain.data import Loader
from pretrain.guards.resume_state import ResumeState, state_problem
from pretrain.guards.step_guard import GuardHistory, Rollback


def checkpoint_before(folder: Path, history: GuardHistory) -> Checkpoint | None:
    """The newest intact checkpoint older than the weights of the spike's first step; a collective.

    If there is none, the oldest intact checkpoint; None if no checkpoint is intact.
    """
    assert history.spike
    newest_before = history.spike.step - 1
    saved = sorted(committed(folder), key=lambda one: (one[0] >= newest_before, abs(newest_before - one[0])))
    return first_intact([path for _, path in saved], state_problem)


def go_back(then: ResumeState, history: GuardHistory, loader: Loader, steps: int) -> ResumeState:
    """The state from which the run resumes after a rollback.

    Args:
        then: the resume state of the checkpoint.
        history: the current state of the guards.
        loader: computes how many rows steps read.
        steps: the number of steps after the first step of the spike whose batches are skipped too.
    """
    assert history.spike
    spike, first = history.spike, then.position
    skipped = loader.skip(spike.step - 1, spike.position, steps + 1, to=then.steps_done)
    position = max(first, skipped, key=lambda position: position.dealt)
    made = Rollback(spike.step, then.steps_done, first.dealt, position.dealt)
    # The history of the checkpoint, with all rollbacks: it lacks the later ones.
    return replace(then, position=position, history=replace(then.history, rollbacks=(*history.rollbacks, made)))


def report_rollback(state: ResumeState, report: Callable[[int, dict[str, float], dict[str, Any] | None], None]) -> None:
    """Report a rollback in the log and, at the step of the spike, in the journal."""
    made = state.history.rollbacks[-1]
    if dist.get_rank() == 0:
        print(f"warning: went back {made} left out (guard.rollback)", file=sys.stderr, flush=True)
        rows = float(made.next_row - made.first_row)
        with contextlib.suppress(OSError):  # a full disk: the journal keeps the line and writes it later
            report(made.spike, {"train/rollback_to": float(made.to), "train/rows_left_out": rows}, None)
