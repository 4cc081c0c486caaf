"""Download of the model that a run begins with, before its processes start: they read only the cache."""

import contextlib
import sys
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.storage import fetch_from_hub, hub_parts, is_hub_name
from pretrain.checkpoint import committed
from pretrain.config import Config
from pretrain.config_files import load_config, on_one_line
from pretrain.run import RunFolder


def load_to_start(path: Path, overrides: list[str], profile: Path | None = None) -> tuple[Config, list[str]]:
    """Load the config of a run that is to start. If model.init is a name of the Hub, download it and add its commit.

    A run that was started before keeps its commit, unless model.init has another one.

    Returns:
        The config, and the overrides with the commit, for the processes of the run.

    Raises:
        UserError: as load_config and fetch_from_hub.
    """
    config = load_config(path, overrides, profile)
    if config.model.init is None or not is_hub_name(config.model.init):
        return config, overrides
    name, before = config.model.init, _init_of_run(config)
    if before and not hub_parts(name)[2]:
        print(f"note: model.init is {before}, as at the first start; {name} is not looked up", file=sys.stderr)
        name = before
    if name != before or not committed(RunFolder(config.run.dir).checkpoints):  # else it is not read
        name = fetch_from_hub(name, shards=False)
    overrides = [*overrides, f"model.init={on_one_line(str(name))}"]
    return load_config(path, overrides, profile), overrides


def _init_of_run(config: Config) -> Path | None:
    """The name with its commit of an earlier start, or of the run that this one branches from; of the same repository.

    None if there was no such start.
    """
    folder, resume = RunFolder(config.run.dir), Path(config.run.resume)
    for path in (folder.config, folder.job_config, resume.parent.parent / folder.config.name):
        with contextlib.suppress(UserError):  # it is missing, or of another version
            init = load_config(path).model.init
            repository, _, is_commit = hub_parts(str(init))
            if is_commit and repository == hub_parts(str(config.model.init))[0]:
                return init
    return None
