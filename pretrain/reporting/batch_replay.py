"""Rebuild the batch of a training step from the run's journal, its config and the shards."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.reading import cannot_read, typed, unusable
from data_prep.common.urls import require_trust
from data_prep.storage import require_run
from pretrain.checkpoint import Identity, committed, read
from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.data import BatchRows, BatchStage, Loader, MixturePosition, Sources
from pretrain.masking import Vocabulary, largest_mask_rate
from pretrain.run import JournalReader, RunFolder


@dataclass(frozen=True)
class Replayed:
    """A global batch.

    Attributes:
        step, metrics: from the journal. phase: the name of its phase, or "".
        position, names: start of the batch in the stream of each data set, and the names of the data sets.
        checksum: see pretrain.data.batch_hash.
        tokenizer: the folder with the run's tokenizer.
    """

    step: int
    phase: str
    metrics: dict[str, float]
    position: MixturePosition
    names: tuple[str, ...]
    rows: BatchRows
    checksum: int
    vocabulary: Vocabulary
    tokenizer: Path


@dataclass(frozen=True)
class _Batch:
    """The journal's record of a training step's batch."""

    position: dict[str, Any]
    seq_len: int
    rows: int
    mask_rate: float
    checksum: int
    replaced: int
    settings: str
    shares: tuple[float, ...] = ()


def replay(run: Path, step: int, trust_folder: bool = False) -> Replayed:
    """Rebuild the global batch of a step. `trust_folder`: also read data sets on other machines, which the run names.

    Raises UserError if there is no such run or step, the data set is missing or has changed, or the batch has another
    checksum than in the journal.
    """
    folder = RunFolder(run)
    require_run(run)
    config = load_config(folder.config)
    if not trust_folder:
        require_trust(config.data_locations, folder.config)
    metrics, batch, position = _record(folder, step)
    data = _open_data(config, folder, batch.settings, step)
    stages = BatchStage.of_run(config, world_size=1)  # the number of processes does not change the batches
    stage = [stage for stage in stages if stage.after_step < step][-1]
    if (batch.rows, batch.seq_len) != (stage.rows, stage.seq_len):
        raise UserError(
            f"{run} cannot be replayed: step {step} had {batch.rows} rows of {batch.seq_len} slots, and by "
            f"config.yaml it has {stage.rows} of {stage.seq_len}. Restore data.seq_len, "
            "train.global_batch_size or phases."
        )
    own = config.phase_at(step - 1).config
    most = largest_mask_rate(own.masking) if own.masks_at_a_rate else 1.0
    if not 0 <= batch.mask_rate <= most:
        reason = f"of the step's batch, mask_rate is {batch.mask_rate:g}, not from 0 to {most:g} as in config.yaml"
        raise unusable(folder.journal, reason)
    position = position.of_sources(len(data.datasets))
    loader = Loader.for_training(config, data, stages, rank=0, rate=batch.mask_rate, shares=batch.shares)
    try:
        batches = loader.step(step - 1, position).batches
    finally:
        loader.close()
    checksum, replaced = sum(made.checksum() for made in batches), sum(made.n_replaced for made in batches)
    if checksum != batch.checksum:
        why = "the data set, config.yaml or the version of Maskwright is not what it was trained with"
        if replaced != batch.replaced:
            why = f"{batch.replaced} of its tokens replaced damaged ones, and now {replaced} do"
        raise UserError(f"{run}: step {step} has checksum {checksum}, and the journal has {batch.checksum}: {why}.")
    rows, vocabulary = BatchRows.of(batches, config.objective_kinds), Vocabulary.of(data.tokenizer)
    return Replayed(
        step,
        config.phase_at(step - 1).name,
        metrics,
        position,
        data.names,
        rows,
        checksum,
        vocabulary,
        folder.tokenizer,
    )


def _record(folder: RunFolder, step: int) -> tuple[dict[str, float], _Batch, MixturePosition]:
    """The journal's metrics, batch and position of a step."""
    try:
        entry, steps = JournalReader(folder.journal).training_step(step)
    except FileNotFoundError:
        raise UserError(f"{folder.path} has no journal.jsonl: the run has not finished a step yet.") from None
    except OSError as error:
        raise cannot_read(folder.journal, error) from None
    if entry is None:
        known = f"Its steps are {steps[0]} to {steps[-1]}." if steps else "It has none."
        raise UserError(f"{folder.journal} has no step {step}. {known}")
    try:
        batch: _Batch = typed(_Batch, entry.batch)
        return entry.metrics, batch, typed(MixturePosition, batch.position)
    except ValueError as error:
        raise unusable(folder.journal, f"of the step's batch, {error}") from None


def _open_data(config: Config, folder: RunFolder, settings: str, step: int) -> Sources:
    """Open the run's data sets.

    Raises UserError if they are missing, or they or the settings have changed since the step.
    """
    data = Sources.open(config)
    now = Identity.of(config, data, step)
    if now.batch_digest() != settings:
        then = _newest_identity(folder)
        changed = "; ".join(then.of_batches().changes(now.of_batches()).values()) if then else ""
        raise UserError(
            f"{folder.path} cannot be replayed: {changed or 'its settings were others at that step'}; "
            "restore the data set, the settings or the version of Maskwright that it was trained with"
        )
    return data


def _newest_identity(folder: RunFolder) -> Identity | None:
    """The `identity` in the newest readable checkpoint, which decides the batches; None without a checkpoint."""
    for _, path in committed(folder.checkpoints):
        with contextlib.suppress(UserError):
            if isinstance(identity := read(path).state.get("identity"), dict):
                return Identity(identity)
    return None
