"""Rules of a resume: whether a run may resume from a checkpoint. They are checked before any process imports torch."""

from pathlib import Path

from data_prep.common.errors import UserError
from pretrain.checkpoint import Checkpoint, Identity, changed_settings, committed, first_of, read, verify
from pretrain.config import Config
from pretrain.data import Sources
from pretrain.model import describe_model, read_description, weights_digest
from pretrain.resuming.resume_state import state_problem
from pretrain.run import RunFolder

SEARCHED = ("auto", "required")
"""Values of run.resume that mean the newest checkpoint of the run folder."""


def expected_start(config: Config) -> Checkpoint | None:
    """The checkpoint of the run folder from which the run will resume, chosen without its processes.

    Returns None without a checkpoint, or if run.resume is `never` or names a checkpoint.

    Raises UserError if the run cannot resume from it.
    """
    if config.run.resume not in SEARCHED:
        return None
    for _, path in committed(RunFolder(config.run.dir).checkpoints):
        try:
            if saved := check_outline(config, path):
                return saved
        except UserError:
            if verify(path) is None:  # a damaged checkpoint is skipped
                raise
    return None


def check_outline(config: Config, path: Path) -> Checkpoint | None:
    """A checkpoint, judged by its manifest and the sizes of its files; None if it is damaged, which the run reports.

    Raises UserError if the run may not resume from it.
    """
    if verify(path, sizes_only=True) or state_problem(saved := read(path)):
        return None
    check_fits(config, saved, Sources.open(config))
    return saved


def check_fits(config: Config, saved: Checkpoint, data: Sources) -> None:
    """Raise UserError unless a run of this configuration may resume from a checkpoint."""
    then, init = Identity.stored(saved), config.model.init
    stored = then.settings.get("model.init (weights)")  # for a file that no longer exists
    digest = weights_digest(init, missing=stored) if init else None
    changed = then.changes(Identity.of(config, data, saved.step, digest))
    if "plan version" in changed:
        raise UserError(
            f"{saved.path} cannot be resumed: it is of another version of Maskwright ({changed['plan version']}); "
            "use that version, or choose another run.dir"
        )
    description = describe_model(config, data.tokenizer, saved.step)
    shape = changed_settings(read_description(saved.state["shape"]), description)
    for view in ("causal", "sep_id"):  # the weights fit all views: a run may go from one objective to the other
        shape.pop(view, None)
    if shape:
        later = " For longer rows later on, set it at the start." if "max_positions" in shape else ""
        raise UserError(
            f"{saved.path} is of another shape of model: {first_of(changed | shape)}. Restore the settings, or choose "
            f"another run.dir.{later}"
        )
    if changed and not config.run.allow_changes:
        raise UserError(
            f"{saved.path} cannot be resumed: {first_of(changed)}; restore the setting, choose another run.dir, or "
            "pass run.allow_changes=true"
        )
    if saved.step > config.train.steps:
        raise UserError(f"{saved.path} is past train.steps ({config.train.steps}); raise train.steps to continue")
