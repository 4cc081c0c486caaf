"""A trial step on the largest batch shapes, before the first step: lack of memory and wrong gradients end the run."""

import functools

import torch

from data_prep.errors import UserError
from pretrain.data import DeviceFeed, Loader
from pretrain.distributed import run_on_all_ranks
from pretrain.engine import Engine
from pretrain.guards.gradients import end_for_wrong_gradients
from pretrain.guards.resume_state import ResumeState

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


def explain(error: Exception, rows: int, seq_len: int) -> str | None:
    """Advice for the user about a failed step; None if the cause is unknown."""
    size = f"with {rows} rows of {seq_len} slots in a micro-batch"
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(said in str(error) for said in _OUT_OF_MEMORY):
        return (
            f"a trial step {size} does not fit into memory; lower train.micro_batch_size (the global batch stays as it "
            "is), or raise zero.stage"
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        said = str(error).strip().splitlines()[0]
        return f"a trial step {size} could not be compiled; set train.compile=false ({type(error).__name__}: {said})"
    return None


def dry_run(engine: Engine, loader: Loader, state: ResumeState, longest_row: int) -> None:
    """Run a trial step that changes no state; a collective.

    Raises:
        UserError: if it does not fit into memory, cannot be compiled, or gives other gradients than a plain all-reduce.
        DamagedData: as the first step would.
    """
    examples = run_on_all_ranks(lambda: list(loader.examples(state.steps_done, state.position)))
    report = functools.partial(end_for_wrong_gradients, config=engine.config)
    feed = DeviceFeed(engine.device, loader.objective, longest_row)
    for batches in examples:
        batch = batches[0]
        try:
            engine.rehearse([feed(batch).wait() for batch in batches], report)
        except Exception as error:
            if said := explain(error, len(batch.tokens) // batch.seq_len, batch.seq_len):
                raise UserError(said) from error
            raise
