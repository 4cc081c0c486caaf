"""The state from which a run starts or resumes, and the state that it stores in a checkpoint."""

import re
from dataclasses import asdict, replace
from typing import Any

from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config import Config
from pretrain.data import Loader, Sources
from pretrain.distributed import require_equal_on_ranks, run_on_all_ranks
from pretrain.engine import layout_of
from pretrain.model import describe_model, weights_digest
from pretrain.resuming.resume_state import ResumeState

# The settings that decide the rows. A stored position is invalid if one of them has changed.
_ROW_SETTINGS = {
    "data.train (fingerprint)",
    "data.train (sources)",
    "data.seq_len",
    "data.packing",
    "data.window_blocks",
    "batches",
    "run.seed",
    "plan version",
}
_ROWS_OF_PHASE = re.compile(r"phases\..*\.data\.(train \((fingerprint|sources)\)|temperature)$")


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


def checkpoint_state(config: Config, data: Sources, state: ResumeState) -> dict[str, Any]:
    """The state that a checkpoint stores apart from weights and optimizer, as JSON values."""
    totals = [dataset.manifest.totals for dataset in data.datasets]
    return {
        "position": asdict(state.position),
        "replaced_tokens": state.replaced_tokens,
        "guards": asdict(state.history),
        "identity": Identity.of(config, data, state.steps_done, state.init).settings,
        "layout": layout_of(config),
        "shape": describe_model(config, data.tokenizer, state.steps_done),
        "data": {"documents": sum(t.documents for t in totals), "tokens": sum(t.tokens for t in totals)},
        "data_of_phases": data_of_phases(config, data),
        "config": config.model_dump(mode="json"),
    }


def data_of_phases(config: Config, data: Sources) -> dict[str, str]:
    """The fingerprints of the data that phases after the first one set."""
    phases = [phase for phase in config.run_phases[1:] if "data.train" in phase.changes]
    return {phase.name: data.of_phase(phase.number).fingerprint for phase in phases}
