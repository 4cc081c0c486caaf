"""Find the start of a run: step 0, or an intact checkpoint with the same settings."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_prep.errors import UserError
from pretrain import checkpoint
from pretrain.checkpoint.choose_checkpoint import newest_verified, verify_on_all_ranks
from pretrain.checkpoint.identity import differences, identity_of
from pretrain.checkpoint.remote_copies import copies, fetch_newest
from pretrain.config import Config
from pretrain.data import MixturePosition, Position, Sources
from pretrain.distributed import run_on_all_ranks, run_on_rank_zero
from pretrain.engine.resharding import layout_of
from pretrain.guards import ResumeState, check_fits, identity_then, state_problem
from pretrain.model import describe
from pretrain.run import RunFolder

# The settings that decide the rows. A stored position is invalid if one of them has changed.
_ROW_SETTINGS = {
    "data.train (fingerprint)",
    "data.seq_len",
    "data.packing",
    "data.window_blocks",
    "masking.static_epochs",
    "curriculum",
    "run.seed",
    "plan version",
}


def checkpoint_state(config: Config, data: Sources, state: ResumeState) -> dict[str, Any]:
    """The state that a checkpoint stores apart from weights and optimizer, as JSON values."""
    totals = [dataset.manifest.totals for dataset in data.datasets]
    return {
        "position": state.position.to_json(),
        "replaced_tokens": state.replaced_tokens,
        "guards": state.history.to_json(),
        "identity": identity_of(config, data, state.steps_done, state.init),
        "layout": layout_of(config),
        "shape": describe(config, data.tokenizer),
        "data": {"documents": sum(t.documents for t in totals), "tokens": sum(t.tokens for t in totals)},
        "config": config.model_dump(mode="json"),
    }


def find_start(config: Config, folder: RunFolder, data: Sources) -> checkpoint.Checkpoint | None:
    """The checkpoint to resume from, or None to start at step 0; a collective.

    Raises:
        UserError: if the checkpoint of run.resume does not exist, or does not fit the configuration.
    """
    resume = config.run.resume
    if resume == "never":
        run_on_rank_zero(lambda: _refuse_existing(config, folder))
        return None
    named = resume not in ("auto", "required")
    if not named:
        run_on_rank_zero(lambda: _fetch(config, folder))
    found = newest_verified(folder.checkpoints, lambda problem: _say(f"warning: {problem}"), state_problem)
    if found is None and resume == "required":
        raise UserError(f"{folder.path}: run.resume is required, and there is no checkpoint in it")
    if named and (found is None or found.state["config"]["run"]["resume"] != resume):
        # Only at the first start: later, the run has its own checkpoints and resumes from them.
        found = _named(config, folder, Path(resume))
    if found:
        run_on_all_ranks(lambda: check_fits(config, found, data))
        _tell_layout(found, layout_of(config))
    return found


def start_state(start: checkpoint.Checkpoint, config: Config, data: Sources) -> ResumeState:
    """The resume state. The stream resumes at its position, or at the next epoch if its rows have changed."""
    state = ResumeState.of(start)
    changed = differences(identity_then(start), identity_of(config, data, start.step, state.init))
    if not _ROW_SETTINGS & changed.keys():
        return state
    epochs = [source.epoch for source in state.position.sources]
    if len(epochs) != len(data.datasets):
        epochs = [max(epochs)] * len(data.datasets)
    sources = tuple(Position(epoch + 1) for epoch in epochs)
    return replace(state, position=MixturePosition(state.position.dealt, sources))


def _named(config: Config, folder: RunFolder, path: Path) -> checkpoint.Checkpoint:
    if path.resolve().parent != folder.checkpoints.resolve() and not config.run.trust_checkpoint:
        raise UserError(
            f"{path} belongs to another run, and this one would build on weights of whoever made it; "
            "pass run.trust_checkpoint=true if you trust them"
        )
    path = path.resolve()  # resolves a symbolic link
    problem = verify_on_all_ranks(path) or state_problem(checkpoint.read(path))
    if problem:
        raise UserError(f"{path}: the checkpoint named by run.resume cannot be used: {problem}")
    return checkpoint.read(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse_existing(config: Config, folder: RunFolder) -> None:
    if existing := checkpoint.committed(folder.checkpoints):
        raise UserError(
            f"{existing[0][1]} exists although run.resume is never; move it away, or choose another run.dir"
        )
    if (url := config.checkpoint.remote) and copies(url):
        raise UserError(
            f"{url} has checkpoints although run.resume is never; move them away, or choose another checkpoint.remote"
        )


def _fetch(config: Config, folder: RunFolder) -> None:
    """Fetch the newest remote copy if the run folder has no checkpoint."""
    if config.checkpoint.remote and not checkpoint.committed(folder.checkpoints):
        fetch_newest(config.checkpoint.remote, folder.checkpoints, _say)


def _tell_layout(found: checkpoint.Checkpoint, layout: dict[str, Any]) -> None:
    changed = differences(found.state["layout"], layout)
    if changed and dist.get_rank() == 0:
        print(f"{found.path.name} is laid out anew: {'; '.join(changed.values())}", file=sys.stderr, flush=True)
