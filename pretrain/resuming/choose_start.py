"""Choose the checkpoint that a run resumes from, for every value of run.resume."""

import sys
from collections.abc import Iterator
from pathlib import Path

from data_prep.common.errors import UserError
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint, Identity, changed_settings
from pretrain.config import Config
from pretrain.config_files import flat
from pretrain.data import Sources
from pretrain.distributed import print_on_rank_zero, run_on_all_ranks, run_on_rank_zero
from pretrain.engine import layout_of
from pretrain.optim import learning_rate
from pretrain.resuming.resume_rules import SEARCHED, check_fits
from pretrain.resuming.resume_state import state_problem
from pretrain.resuming.start_state import data_of_phases
from pretrain.run import RunFolder


def find_start(config: Config, folder: RunFolder, data: Sources) -> Checkpoint | None:
    """The checkpoint to resume from, or None to start at step 0; a collective.

    Raises UserError if the checkpoint of run.resume does not exist, or does not fit the configuration.
    """
    resume, remote = config.run.resume, config.checkpoint.remote
    if resume == "never":
        run_on_rank_zero(lambda: _refuse_existing(config, folder))
        return None
    if remote:
        run_on_rank_zero(lambda: _fetch(remote, folder.checkpoints))
    saved = checkpoint.newest_verified(folder.checkpoints, lambda problem: _print(f"warning: {problem}"), state_problem)
    if saved is None and resume == "required":
        raise UserError(f"{folder.path}: run.resume is required, and there is no checkpoint in it")
    began = Path(saved.state["config"]["run"]["resume"]).resolve() if saved else None
    if resume not in SEARCHED and began != Path(resume).resolve():
        # Only at the first start: later, the run has its own checkpoints and resumes from them.
        saved = _named(config, folder, Path(resume))
    if saved:
        run_on_all_ranks(lambda: check_fits(config, saved, data))
        for line in _allowed_changes(config, saved, data):
            print_on_rank_zero(line)
    return saved


def _allowed_changes(config: Config, saved: Checkpoint, data: Sources) -> Iterator[str]:
    """Lines about changes that need no permission: phases that have not begun, the schedule, and the layout."""
    before = Config.model_validate(saved.state["config"])
    for said in _changed_phases(config, before, saved, data).values():
        yield f"Changed before the phase begins: {said}"
    for name in Identity.stored(saved).not_stored(Identity.of(config, data, saved.step)):
        yield f"warning: an earlier version wrote {saved.path.name}, so {name} may have changed since"
    now, then = config.train.steps, before.train.steps
    rates = [f"{learning_rate(settings, saved.step):.3g}" for settings in (config, before)]
    if saved.step < now and (now != then or len({*rates}) > 1):
        yield (
            f"Changed schedule: {now:,} steps instead of {then:,}; the learning rate of step {saved.step + 1:,} is "
            f"{rates[0]} instead of {rates[1]}, at the last step it is {learning_rate(config, now - 1):.3g}"
        )
    if changed := changed_settings(saved.state["layout"], layout_of(config)):
        yield f"{saved.path.name} is resharded: {'; '.join(changed.values())}"


def _changed_phases(config: Config, before: Config, saved: Checkpoint, data: Sources) -> dict[str, str]:
    """A phrase for each setting that has changed in phases that have not begun."""
    then, now = (
        {
            f"phases.{phase.name}.{key}": value
            for phase in settings.run_phases
            if phase.start >= saved.step and phase.number
            for key, value in flat({"steps": phase.end - phase.start, **phase.changes}).items()
        }
        for settings in (before, config)
    )
    changed = changed_settings(then, now)
    stored, read = saved.state["data_of_phases"], data_of_phases(config, data)
    for phase in config.run_phases:
        key, known = f"phases.{phase.name}.data.train", phase.name in stored and phase.name in read
        if known and phase.start >= saved.step and key not in changed and stored[phase.name] != read[phase.name]:
            changed[key] = f"{key} is another data set at the same path (fingerprint {read[phase.name][:16]})"
    return changed


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
    saved = checkpoint.first_intact(
        path.parent, [path.name], state_problem, lambda _, problem: problems.append(problem)
    )
    if saved is None:
        raise UserError(f"{path}: the checkpoint named by run.resume cannot be used: {problems[0]}")
    return saved


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
