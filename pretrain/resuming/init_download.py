"""Download of the model that a run begins with, before its processes start: they read only the cache."""

import contextlib
import sys
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.storage import fetch_from_hub, hub_parts, is_hub_name
from pretrain.checkpoint import committed, step_of
from pretrain.config import Config
from pretrain.config_files import load_config, override_words
from pretrain.run import RunFolder


def load_to_start(
    path: Path, overrides: list[str], profile: Path | None = None, keep: bool = False
) -> tuple[Config, list[str]]:
    """Load the config of a run that is to start. If model.init is a name of the Hub, download it and add its commit.

    A run with a checkpoint, or from one, keeps its commit, unless model.init has another one. `keep`: any run does.

    Returns:
        The config, and the overrides with the commit, for the processes of the run.

    Raises UserError as load_config and fetch_from_hub.
    """
    config = load_config(path, overrides, profile)
    if config.model.init is None or not is_hub_name(config.model.init):
        return config, overrides
    name, before = config.model.init, _init_of_run(config, keep)
    if before and not hub_parts(name)[2]:
        note = f"note: model.init is {before}, as at the first start; {name} is not looked up"
        print(f"{note}. For another commit, choose a new run.dir.", file=sys.stderr)
        name = before
    if name != before or not committed(RunFolder(config.run.dir).checkpoints):  # else it is not read
        name = fetch_from_hub(name, shards=False)
    overrides = [*overrides, *override_words({"model.init": name})]
    return load_config(path, overrides, profile), overrides


def _init_of_run(config: Config, keep: bool) -> Path | None:
    """The name with its commit of an earlier start, or of the run that this one branches from; of the same repository.

    None if there is no such name, or the run has nothing to continue from.
    """
    folder, resume = RunFolder(config.run.dir), Path(config.run.resume).resolve()
    paths = [folder.config, folder.job_config]
    if step_of(resume.name) is not None:
        paths.append(resume.parent.parent / folder.config.name)
    elif not (keep or config.checkpoint.remote or committed(folder.checkpoints)):
        return None
    for path in paths:
        with contextlib.suppress(UserError):  # it is missing, or of another version
            init = load_config(path).model.init
            repository, _, is_commit = hub_parts(str(init))
            if is_commit and repository == hub_parts(str(config.model.init))[0]:
                return init
    return None
