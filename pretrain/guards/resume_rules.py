"""Rules for resuming a run from a checkpoint, without torch or a process group."""

from typing import Any

from data_prep.errors import UserError
from pretrain.checkpoint import Checkpoint
from pretrain.checkpoint.identity import completed, differences, identity_of
from pretrain.config import Config
from pretrain.data import Sources
from pretrain.model import describe, digest_of, in_full, weights_file


def _init_now(config: Config, found: Checkpoint) -> str | None:
    """The digest of the weights at model.init. If the file no longer exists, the digest that the checkpoint stores."""
    init = config.model.init
    if init is None:
        return None
    return digest_of(init) if weights_file(init).is_file() else found.state["identity"].get("model.init (weights)")


def identity_then(found: Checkpoint) -> dict[str, Any]:
    return completed(found.state["identity"], found.state["config"])


def check_fits(config: Config, found: Checkpoint, data: Sources) -> None:
    """Raise UserError unless a run of this configuration may resume from a checkpoint."""
    now = identity_of(config, data, found.step, _init_now(config, found))
    changed = differences(identity_then(found), now)
    if "plan version" in changed:
        raise UserError(
            f"{found.path} cannot be resumed: it is of another version of Maskwright ({changed['plan version']}); "
            "go on with that version, or choose another run.dir"
        )
    shape = differences(in_full(found.state["shape"]), describe(config, data.tokenizer))
    shape.pop("causal", None)  # the weights fit both: a run may go from one objective to the other
    if shape:
        raise UserError(
            f"{found.path} cannot be resumed: {'; '.join([*changed.values(), *shape.values()])}; that is another shape "
            "of model, so restore the settings, or choose another run.dir (for longer rows later on, set "
            "model.max_positions at the start)"
        )
    if changed and not config.run.allow_changes:
        raise UserError(
            f"{found.path} cannot be resumed: {'; '.join(changed.values())}; restore the setting, choose another "
            "run.dir, or pass run.allow_changes=true"
        )
    if found.step > config.train.steps:
        raise UserError(f"{found.path} is past train.steps ({config.train.steps}); raise train.steps to go on")
