"""Rebuild the batch of a training step from the run's journal, its config and the shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.folder_kinds import require_run
from data_prep.reading import cannot_read, typed, unusable
from pretrain.checkpoint import committed, read
from pretrain.checkpoint.identity import batch_settings, differences, identity_of, of_batches
from pretrain.config import Config, load_config
from pretrain.data import MixturePosition, Sources, batch_checksum, open_sources
from pretrain.data.batch_view import RowArrays, rows_of
from pretrain.data.loader import BatchPhase, stage_at, stages_of
from pretrain.data.training_sources import training_loader
from pretrain.masking import Vocabulary
from pretrain.run import RunFolder, read_environment
from pretrain.run.journal import Entry, read_step


@dataclass(frozen=True)
class Replayed:
    """A global batch, or one rank's share of it.

    Attributes:
        step, metrics: from the journal.
        position, names: start of the global batch in the stream of each data set, and the names of the data sets.
        first_row: index of the first of `rows` in the global batch.
        checksum: of the whole global batch, see pretrain.data.checksum.
        checksum_matches: whether it equals the checksum in the journal.
        replaced: number of tokens that replace damaged ones: during training, and now.
        tokenizer: the folder with the run's tokenizer.
    """

    step: int
    metrics: dict[str, float]
    position: MixturePosition
    names: tuple[str, ...]
    rows: RowArrays
    first_row: int
    checksum: int
    checksum_matches: bool
    replaced: tuple[int, int]
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


def replay(run: Path, step: int, rank: int | None = None) -> Replayed:
    """Rebuild the global batch of a step, or the share of one rank of the run's last start.

    Raises:
        UserError: if there is no such run, step or rank, or the data set is missing or has changed.
    """
    folder = RunFolder(run)
    require_run(run)
    config = load_config(folder.config)
    entry = _entry(folder, step)
    batch = _checked(folder, entry.batch or {})
    data = _open_data(config, folder, batch["settings"])
    position = MixturePosition.from_json(batch["position"])
    stages = stages_of(config, world_size=1)  # the number of processes does not change the batches
    _check_stage(folder, step, stages, batch)
    loader = training_loader(config, data, stages, rank=0, rate=batch["mask_rate"])
    try:
        batches = loader.step(step - 1, position).batches
    finally:
        loader.close()
    checksum = sum(batch_checksum(batch) for batch in batches)
    rows = rows_of(batches, config.causal)
    share = _share(len(rows), folder, rank)
    return Replayed(
        step=step,
        metrics=entry.metrics,
        position=position,
        names=data.names,
        rows=rows.rows(share.start, share.stop),
        first_row=share.start,
        checksum=checksum,
        checksum_matches=checksum == batch["checksum"],
        replaced=(batch["replaced"], sum(made.n_replaced for made in batches)),
        vocabulary=Vocabulary.of(data.tokenizer),
        tokenizer=folder.tokenizer,
    )


def _entry(folder: RunFolder, step: int) -> Entry:
    try:
        entry, steps = read_step(folder.journal, step)
    except FileNotFoundError:
        raise UserError(f"{folder.path} has no journal.jsonl: the run has not finished a step yet.") from None
    except OSError as error:
        raise cannot_read(folder.journal, error) from None
    if entry is None:
        raise UserError(f"{folder.journal} has no step {step}; it has {_ranges(steps)}")
    return entry


def _checked(folder: RunFolder, batch: dict[str, Any]) -> dict[str, Any]:
    """The journal's record of a batch. Raises UserError if it is damaged."""
    try:
        typed(_Batch, batch)
        MixturePosition.from_json(batch["position"])
    except ValueError as error:
        raise unusable(folder.journal, f"of the step's batch, {error}") from None
    return batch


def _check_stage(folder: RunFolder, step: int, stages: Sequence[BatchPhase], batch: dict[str, Any]) -> None:
    stage, _ = stage_at(stages, step - 1)
    then, now = (batch["rows"], batch["seq_len"]), (stage.shape.rows, stage.seq_len)
    if then != now:
        raise UserError(
            f"{folder.path} cannot be replayed: step {step} had {then[0]} rows of {then[1]} slots, and by config.yaml "
            f"it has {now[0]} of {now[1]}; restore data.seq_len, train.global_batch_size or curriculum"
        )


def _ranges(steps: list[int]) -> str:
    """Increasing numbers as ranges: "steps 1 to 4, 7"."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    parts = [f"{first} to {last}" if last > first else f"{first}" for first, last in ranges]
    return f"{'steps' if len(steps) > 1 else 'step'} {', '.join(parts)}" if parts else "none"


def _open_data(config: Config, folder: RunFolder, settings: str) -> Sources:
    """Open the run's data sets.

    Raises:
        UserError: if they are missing, or they or the settings have changed since the step.
    """
    data = open_sources(config.data)
    if batch_settings(config, data) != settings:
        then, now = of_batches(_newest_identity(folder)), of_batches(identity_of(config, data, 0))
        changed = "; ".join(differences(then, now).values()) if then else ""
        raise UserError(
            f"{folder.path} cannot be replayed: {changed or 'its settings were others at that step'}; "
            "restore the data set, the settings or the version of Maskwright that it was trained with"
        )
    return data


def _newest_identity(folder: RunFolder) -> dict[str, Any]:
    """The `identity` in the newest readable checkpoint, which decides the batches; empty without a checkpoint."""
    for _, path in committed(folder.checkpoints):
        try:
            identity = read(path).state.get("identity")
        except UserError:
            continue
        if isinstance(identity, dict):
            return identity
    return {}


def _share(rows: int, folder: RunFolder, rank: int | None) -> range:
    """A rank's rows of the global batch; all rows if `rank` is None."""
    if rank is None:
        return range(rows)
    processes = (read_environment(folder.environment) or {}).get("processes")
    if processes is None:
        raise UserError(f"{folder.environment} does not tell the number of processes; omit --rank")
    if not 0 <= rank < processes:
        ranks = "rank 0" if processes == 1 else f"ranks 0 to {processes - 1}"
        raise UserError(f"{folder.path} was trained with {ranks}; there is no rank {rank}")
    mine = rows // processes
    return range(rank * mine, (rank + 1) * mine)
