"""Preflight checks of a run: fail before any process starts and before a job waits in a queue.

`train`, `launch`, `study` and `doctor` all use the list CHECKS. The checks of a node are in launchers.node_checks.
"""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.common.errors import UserError, working_directory
from data_prep.common.urls import is_url, shown
from pretrain.checkpoint import committed
from pretrain.config import Config, TrackConfig, address_problem
from pretrain.data import BatchStage, Sources
from pretrain.planning.run_warnings import run_warnings
from pretrain.resuming import check_outline, expected_start
from pretrain.run import RunFolder
from pretrain.tracking import Target


class PreflightCheck(NamedTuple):
    """A check of a config. run: raises UserError if the check fails. sound: the result of a check that passes."""

    name: str
    run: Callable[[Config, int], Any]
    sound: str


def check_start(config: Config, world_size: int) -> list[str]:
    """Make all checks for a run of `world_size` processes. Returns its warnings.

    Raises UserError if a check fails.
    """
    for check in CHECKS:
        check.run(config, world_size)
    return run_warnings(config)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings of runs, equal ones once."""
    for warning in dict.fromkeys(warnings):
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def _check_data(config: Config, world_size: int) -> None:
    BatchStage.of_run(config, world_size)
    Sources.open(config).check(config)


def _check_named_checkpoint(config: Config) -> None:
    """Raise UserError if run.resume names a folder that is missing or does not fit.

    A run that already has checkpoints does not need it.
    """
    resume = config.run.resume
    if resume in ("auto", "required", "never") or _has_checkpoints(config):
        return
    path = Path(resume)
    if is_url(resume):
        raise UserError(f"run.resume is {shown(resume)}, not a folder. Set checkpoint.remote to the URL of the copies.")
    if not path.is_dir():
        where = f"{resume}{working_directory(resume)}"
        raise UserError(f"run.resume: no checkpoint folder {where}. Name RUN/checkpoints/step-N, or write auto.")
    check_outline(config, path)


def check_tracking(track: TrackConfig) -> None:
    """Check the address of MLflow from the config or MLFLOW_TRACKING_URI. A server that is down is no error.

    Raises UserError if the address can never work, the database cannot be used, or the experiment was deleted.
    """
    target = Target.of_training(track.uri, track.experiment)
    problem = address_problem(target.uri, driver=True)
    if problem and os.environ.get("MLFLOW_TRACKING_URI"):
        raise UserError(f"MLFLOW_TRACKING_URI: {problem}")
    if problem:
        raise UserError(f"track.uri: {problem}")
    target.check()


def _check_model(config: Config) -> None:
    """Check model.config, and the folder model.init of a run that has not begun.

    Weights are not read; the run itself detects damaged weights.

    Raises UserError if the model cannot be built, or the weights do not fit it.
    """
    begins_with_weights = config.model.init is not None and not _has_begun(config)
    if config.model.arch != "auto" and not begins_with_weights:
        return
    from pretrain.model import EncoderShape, check_init_folder, describe_model

    data = Sources.open(config)
    description = describe_model(config, data.tokenizer)
    if (init := config.model.init) is not None:
        start = config.model.init_vocabulary, config.model.init_size
        check_init_folder(init, EncoderShape(**description), data.tokenizer_path, *start)


def _has_begun(config: Config) -> bool:
    """Whether the run or one of its seeds resumes from a checkpoint, or may resume from a remote copy."""
    may_resume = config.run.resume not in ("auto", "never") or config.checkpoint.remote is not None
    return may_resume or _has_checkpoints(config)


def _has_checkpoints(config: Config) -> bool:
    """Whether the run folder or the run folder of one of its seeds has a checkpoint."""
    return any(committed(RunFolder(run).checkpoints) for run in (config.run.dir, *config.run.dir.glob("seed-*")))


CHECKS = (
    PreflightCheck("address", lambda config, _: check_tracking(config.track), "MLflow can use it"),
    PreflightCheck("run.resume", lambda config, _: _check_named_checkpoint(config), "no checkpoint is missing"),
    PreflightCheck("batch and data", _check_data, "the data sets go together, and the batch fits them"),
    PreflightCheck("checkpoint", lambda config, _: expected_start(config), "nothing prevents a start or a resume"),
    PreflightCheck("model", lambda config, _: _check_model(config), "it can be built, and its first weights fit"),
)
"""All checks, in order."""
