"""Entry point of a rank: `deepspeed --module pretrain.train --config CONFIG [section.key=value ...]`."""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from data_prep.errors import UserError
from data_prep.files import write_json
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.config import Config, load_config, save_config
from pretrain.data.loader import BatchShape, Loader, vocabulary_of
from pretrain.data.stream import Position, RowStream
from pretrain.engine import Engine, init_distributed
from pretrain.environment import describe_environment
from pretrain.identity import differences, identity_of
from pretrain.loop import Loop
from pretrain.masking.reference import TokenMasking
from pretrain.model.encoder import Encoder, encoder_shape
from pretrain.reporting import Reporting
from pretrain.run_folder import EXIT_CODES, RunFolder, State
from pretrain.signals import die_with_parent

T = TypeVar("T")
_EVALUATION_SEED = 0  # held-out rows and masks are the same for every run, so that runs compare


def main() -> int:
    """Train as one rank; the exit code is 0 completed, 75 stopped on request, 1 failed."""
    parser = argparse.ArgumentParser(prog="pretrain.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # set by deepspeed
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    arguments = parser.parse_args()
    die_with_parent()
    folder: RunFolder | None = None  # once it is ours
    try:
        init_distributed()
        config = together(lambda: load_config(arguments.config, arguments.overrides))
        claimed = RunFolder(config.run.dir)
        lock = on_main(lambda: _claim(config, claimed))
        folder = claimed
        state = train(config, folder)
        if lock:
            lock.close()
        return EXIT_CODES[state]
    except UserError as error:
        if _is_first_to_fail(folder, str(error)):
            print(f"error: {error}", file=sys.stderr, flush=True)
    except Exception as error:
        reason = f"rank {os.environ.get('RANK', 0)}: {type(error).__name__}: {error}".splitlines()[0]
        if folder is None or _is_first_to_fail(folder, reason):
            print(f"error: {reason}", file=sys.stderr, flush=True)
            traceback.print_exc()
    return EXIT_CODES["failed"]


def train(config: Config, folder: RunFolder) -> State:
    """Set a run up, or take it up again, and train it; a collective."""
    shape = together(lambda: BatchShape.of(config.train, dist.get_world_size()))
    data, valid = together(lambda: _open_data(config))
    identity = identity_of(
        config, data.manifest.fingerprint, data.manifest.tokenizer.sha256, data.manifest.tokenizer.vocab_size
    )
    identity["processes"] = dist.get_world_size()
    identity["zero.stage"] = config.zero.stage
    start = _find_start(config, folder, identity)
    on_main(lambda: _describe(config, folder))
    model = Encoder(encoder_shape(config.model, config.data.seq_len, data.manifest.tokenizer))
    model.initialize(config.run.seed)
    engine = Engine(config, model, shape)
    steps_done, position = 0, Position()
    if start:
        engine.load(start.path)
        steps_done, position = start.step, Position(*start.state["position"])
    loader = _loader(config, data, shape, config.run.seed, "train")
    held_out = _loader(config, valid, shape, _EVALUATION_SEED, "valid") if valid else None
    reporting = Reporting(config, folder, data, steps_done) if dist.get_rank() == 0 else None
    report = reporting.report if reporting else lambda step, metrics: None
    loop = Loop(config, folder, engine, loader, held_out, identity, report)
    state: State = "failed"
    try:
        state = loop.run(steps_done, position)
    finally:
        if reporting:
            folder.stop.unlink(missing_ok=True)  # honoured, or too late
            reporting.close(state, loop.stop.reason)
    engine.close()
    return state


def together(function: Callable[[], T]) -> T:
    """Run a step of the set-up on every rank; if it fails on any, all raise that UserError instead of waiting."""
    result: Any = None
    error: str | None = None
    try:
        result = function()
    except UserError as found:
        error = str(found)
    errors: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    if found_error := next((e for e in errors if e), None):
        raise UserError(found_error)
    return result


def on_main(function: Callable[[], T]) -> T | None:
    """`together`, with the function run on rank 0 alone; None elsewhere."""
    return together(lambda: function() if dist.get_rank() == 0 else None)


def _claim(config: Config, folder: RunFolder) -> Any:
    folder.create()
    lock = folder.lock()
    checkpoint.remove_leftovers(folder.checkpoints)
    step = folder.read_status().step if folder.status.exists() else 0
    folder.write_status("running", step, config.train.steps, "starting", "none")
    return lock


def _describe(config: Config, folder: RunFolder) -> None:
    """After every check: a refused config leaves the account of the run as it was."""
    save_config(config, folder.config)
    write_json(folder.environment, describe_environment(dist.get_world_size()))


def _open_data(config: Config) -> tuple[Dataset, Dataset | None]:
    data = Dataset(config.data.train)
    valid = Dataset(config.data.valid) if config.data.valid else None
    if valid and valid.manifest.tokenizer.sha256 != data.manifest.tokenizer.sha256:
        raise UserError(
            f"{config.data.valid} was made with another tokenizer than {config.data.train}; "
            "prepare both with the same --tokenizer"
        )
    return data, valid


def _loader(config: Config, data: Dataset, shape: BatchShape, seed: int, purpose: str) -> Loader:
    tokenizer, masking = data.manifest.tokenizer, config.masking
    vocabulary = together(lambda: vocabulary_of(tokenizer.vocab_size, tokenizer.special_ids, tokenizer.all_special_ids))
    stream = together(lambda: RowStream(data, config.data.seq_len, seed, config.data.window_blocks))
    replacement = masking.replacement
    masks = TokenMasking(vocabulary, masking.rate, replacement.mask, replacement.random, seed, purpose)
    return Loader(stream, config.data.seq_len, vocabulary, masks, shape, dist.get_rank())


def _find_start(config: Config, folder: RunFolder, identity: dict[str, Any]) -> checkpoint.Checkpoint | None:
    """The checkpoint to go on from, or None to start at step 0; a collective."""
    resume = config.run.resume
    if resume == "never":
        together(lambda: _refuse_existing(folder))
        return None
    if resume in ("auto", "required"):
        found = checkpoint.newest_verified(folder.checkpoints, lambda problem: print(f"warning: {problem}", flush=True))
        if found is None and resume == "required":
            raise UserError(f"{folder.path}: run.resume is required, and there is no checkpoint in it")
    else:
        if problem := checkpoint.verify_together(Path(resume)):
            raise UserError(f"{resume}: the checkpoint named by run.resume is damaged: {problem}")
        found = checkpoint.read(Path(resume))
    if found:
        together(lambda: _check_unchanged(config, found, identity))
    return found


def _refuse_existing(folder: RunFolder) -> None:
    if existing := checkpoint.committed(folder.checkpoints):
        raise UserError(
            f"{existing[0][1]} exists although run.resume is never; move it away, or choose another run.dir"
        )


def _check_unchanged(config: Config, found: checkpoint.Checkpoint, identity: dict[str, Any]) -> None:
    changed = differences(found.state["identity"], identity)
    if changed and not config.run.allow_changes:
        raise UserError(
            f"{found.path} cannot be resumed: {'; '.join(changed)}; restore the setting, choose another run.dir, "
            "or pass run.allow_changes=true"
        )
    if found.step > config.train.steps:
        raise UserError(f"{found.path} is past train.steps ({config.train.steps}); raise train.steps to go on")


def _is_first_to_fail(folder: RunFolder | None, reason: str) -> bool:
    """Record a failure; whether this rank is the one to tell the user. Without a run folder all ranks failed alike."""
    if folder is not None:
        with contextlib.suppress(UserError, OSError):
            return folder.fail(reason, "mend the reason, then run the same command again")
    return os.environ.get("RANK", "0") == "0"


if __name__ == "__main__":
    sys.exit(main())
