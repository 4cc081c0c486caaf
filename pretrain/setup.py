"""Open a run: its folder, data, loader and engine, the same on every rank; and record its start."""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import torch.distributed as dist

from data_prep.common.errors import UserError
from data_prep.common.files import write_file
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config import Config
from pretrain.config_files import save_config
from pretrain.data import BatchStage, Loader, Sources, mixture_line
from pretrain.distributed import (
    all_gather_json,
    print_on_rank_zero,
    require_equal_on_ranks,
    run_on_all_ranks,
    run_on_rank_zero,
)
from pretrain.engine import Engine, slow_precision
from pretrain.model import build_for_training, describe_model
from pretrain.planning import print_warnings, run_warnings
from pretrain.reporting import record_environment
from pretrain.run import PhaseMarker, RunFolder

_COUNTED = 1 << 20  # tokens


@dataclass(frozen=True)
class RunParts:
    """The fixed parts of a run, the same on every rank except `rank`, `lock` and `marker`.

    config: with the values that were chosen where `given` has auto.
    given: the config that the user wrote.
    data, valid: the training data, and the held-out data or None.
    stages: the parts of the run with one shape of batches each.
    description: the description of the model.
    hosts: the host of each rank.
    lock: of the run folder, on rank 0.
    marker: the current phase of this rank.
    """

    config: Config
    folder: RunFolder
    data: Sources
    valid: Dataset | None
    stages: tuple[BatchStage, ...]
    description: dict[str, Any]
    hosts: Sequence[str]
    rank: int
    lock: IO[str] | None
    marker: PhaseMarker
    given: Config


def open_run(config: Config, folder: RunFolder) -> RunParts:
    """Lock the run folder on rank 0, and open the parts that must be the same on all ranks; a collective."""
    stages = run_on_all_ranks(lambda: BatchStage.of_run(config, dist.get_world_size()))
    data = run_on_all_ranks(lambda: Sources.open(config))
    valid = run_on_all_ranks(lambda: data.open_held_out(config.data))
    lock = run_on_rank_zero(lambda: _lock(folder))
    require_equal_on_ranks(config.model_dump_json(), "config")
    contents = (data.fingerprint, data.index_fingerprint, valid.manifest.fingerprint if valid else None)
    require_equal_on_ranks(str(contents), "data set")
    whole = run_on_all_ranks(lambda: Identity.of(config, data, config.train.steps))
    require_equal_on_ranks(whole.batch_digest(), "list of masking")
    description = run_on_all_ranks(lambda: describe_model(config, data.tokenizer))
    require_equal_on_ranks(json.dumps(description, sort_keys=True), "model.config")
    run_on_rank_zero(lambda: data.check_files(config.data, valid))
    for phase in config.run_phases:
        if len(shares := data.mixture_of(phase.number)) > 1:
            print_on_rank_zero(mixture_line(phase.name, shares))
        for name, order in data.of_phase(phase.number).mixed().items():
            print_on_rank_zero(f"{name}{f' in phase {phase.name}' if phase.name else ''}: {order}")
    hosts = []
    for host, sees_folder in all_gather_json([socket.gethostname(), folder.config.parent.is_dir()]):
        hosts.append(host)
        if not sees_folder and hosts.count(host) == 1:
            print_on_rank_zero(
                f"warning: {host} does not have the run folder {folder.path} of {hosts[0]}. Its checkpoints would be "
                "in several places. Choose a run.dir that all nodes share."
            )
    return RunParts(
        config, folder, data, valid, stages, description, hosts, dist.get_rank(), lock, PhaseMarker(), config
    )


def _lock(folder: RunFolder) -> IO[str]:
    folder.create()
    lock = folder.lock()
    checkpoint.remove_leftovers(folder.checkpoints)  # before anything is written: they may have filled the disk
    return lock


def open_loader(run: RunParts) -> Loader:
    """The loader of this rank's training batches; a collective."""
    return run_on_all_ranks(lambda: Loader.for_training(run.config, run.data, run.stages, run.rank))


def build_engine(run: RunParts, saved: Checkpoint | None) -> Engine:
    """Create the model and its optimizer, and load the checkpoint if there is one; a collective."""
    run.marker.enter("start")
    init, tokenizer = None if saved else run.config.model.init, run.data.tokenizer_path
    model = run_on_all_ranks(
        lambda: build_for_training(run.config, run.description, tokenizer, init, print_on_rank_zero)
    )
    engine = Engine(run.config, model, run.marker)
    if saved:
        engine.load(saved)
    return engine


def record_start(run: RunParts, engine: Engine, steps_done: int, kernels: dict[str, Any]) -> dict[str, Any]:
    """Record config, tokenizer and environment of this start in the run folder; a collective.

    Later checkpoints no longer count.

    Args:
        kernels: the kernels of the run, as `trial.choose_kernels` returns them.

    Returns:
        The environment.
    """
    if warning := slow_precision(run.config.train.precision, engine.device.type):
        print_on_rank_zero(warning)

    def record() -> None:
        checkpoint.set_aside(run.folder.checkpoints, steps_done)
        _copy_tokenizer(run.data.datasets[0], run.folder)
        save_config(run.given, run.folder.config)

    run_on_rank_zero(record)
    warnings = run_on_rank_zero(lambda: run_warnings(run.given))
    if warnings and not run.folder.inherits_lock():  # otherwise the command that started this process printed them
        print_warnings(warnings)
    facts = {
        "parameters": engine.n_parameters,
        "data": run.data.facts(),
        "phases": [phase.name for phase in run.given.phases],
        **kernels,
        "micro_batch_size": run.stages[0].micro,
        "vocabulary_size": run.data.tokenizer.vocab_size,
        "unigram_loss": run_on_rank_zero(lambda: _unigram_loss(run.valid)),
        "warnings": warnings,
    }
    return record_environment(run.folder.environment, steps_done, facts)


def _unigram_loss(valid: Dataset | None) -> float | None:
    """The loss of a model that knows only how frequent tokens are in the held-out data, in nats a token.

    Of the first blocks, with at least `_COUNTED` tokens. None without held-out data, or if a block is damaged.
    """
    counts, block = np.zeros(1, np.int64), 0
    try:
        while valid and block < valid.n_blocks and counts.sum() < _COUNTED:
            counts, block = counts + valid.token_counts(block), block + 1
    except (UserError, OSError):
        return None
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) if len(shares) else None


def _copy_tokenizer(data: Dataset, folder: RunFolder) -> None:
    """The run must not need its data set to be exported."""
    info = data.manifest.tokenizer
    if info.files:
        data.check_tokenizer()
    folder.tokenizer.mkdir(exist_ok=True)
    for name in info.files:
        write_file(folder.tokenizer / name, (data.tokenizer_path / name).read_bytes())
