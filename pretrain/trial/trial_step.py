"""Passes before the first step, on the largest batch shapes: comparison of kernels, memory, and wrong gradients."""

import math
from importlib.metadata import version

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.data import Batch, DeviceFeed, Loader
from pretrain.distributed import all_gather_json, run_on_all_ranks
from pretrain.engine import Engine
from pretrain.kernels import Candidates, KernelChoice
from pretrain.model import Encoder
from pretrain.resuming import ResumeState
from pretrain.trial.path_comparison import agreed_path, free_memory, is_out_of_memory, run_pass


def explain(error: Exception, rows: int, seq_len: int) -> str | None:
    """Advice for the user about a failed step; None if the cause is unknown."""
    size = f"with {rows} rows of {seq_len} slots in a micro-batch"
    if is_out_of_memory(error):
        return (
            f"a trial step {size} does not fit into memory; lower train.micro_batch_size (the global batch stays as it "
            "is), or raise zero.stage"
        )
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        said = str(error).strip().splitlines()[0]
        return f"a trial step {size} could not be compiled; set train.compile=false ({type(error).__name__}: {said})"
    return None


def wrong_gradients(differences: dict[str, float], config: Config) -> str:
    """Describe wrong gradients: parameter, ZeRO stage, precision and version of DeepSpeed, and what to do.

    differences: relative differences of gradients from a plain all-reduce, by parameter.
    """
    zero, offloads = config.zero, config.zero.offload != "none"
    worst, size = max(differences.items(), key=lambda difference: difference[1])
    others = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    differ = "are not finite, but the gradients of a plain all-reduce are,"
    if math.isfinite(size):
        differ = f"differ from a plain all-reduce by {100 * size:.2g}% of their norm"
    parts = [f"ZeRO {zero.stage}", *(["offload to the CPU"] if offloads else []), config.train.precision]
    parts += ["torch.compile"] if config.train.compile is True else []
    used = f"{', '.join(parts)} and DeepSpeed {version('deepspeed')}"
    advice = f"Set zero.stage=1{' and zero.offload=none' if offloads else ''}, or use another version of DeepSpeed."
    if zero.stage == 1 and not offloads:  # Maskwright's own reduction
        advice = "Use another version of DeepSpeed or PyTorch."
    return f"Gradients of {worst}{others} {differ} with {used}. {advice}"


class Trial:
    """Passes over the largest batches of the rest of a run.

    Args:
        config: of the run.
        loader, state: of the first step.

    Raises DamagedData as the first step would.
    """

    def __init__(self, config: Config, engine: Engine, loader: Loader, state: ResumeState):
        self._config, self._engine = config, engine
        self._examples: list[list[Batch]] = run_on_all_ranks(
            lambda: list(loader.examples(state.steps_done, state.position))
        )
        self._feed = DeviceFeed(engine.device)

    def choose_path(self, candidates: Candidates) -> KernelChoice:
        """The fastest path that agrees with the plain step on every rank; the model uses it. A collective."""
        batch, model = self._feed(self._examples[0][0]).wait(), self._engine.module
        assert isinstance(model, Encoder)
        return agreed_path(model, self._config, candidates, batch.inputs)

    def fits(self) -> bool:
        """Whether no rank runs out of memory in a pass; a collective. Other errors are left to the trial step."""
        return all(all_gather_json(self._own_rows_fit()))

    def _own_rows_fit(self) -> bool:
        try:
            for batches in self._examples:
                batch = self._feed(batches[0]).wait()
                run_pass(self._engine.module, batch.inputs, len(batch.tokens) // batch.seq_len)
        except Exception as error:
            return not is_out_of_memory(error)
        finally:
            free_memory()
        return True

    def run_step(self) -> None:
        """Run the trial step, which changes no state; a collective.

        Raises UserError if it does not fit into memory, cannot be compiled, or gives other gradients than a plain
        all-reduce.
        """
        for batches in self._examples:
            batch = batches[0]
            try:
                differences = self._engine.rehearse([self._feed(batch).wait() for batch in batches])
            except Exception as error:
                if said := explain(error, len(batch.tokens) // batch.seq_len, batch.seq_len):
                    raise UserError(said) from error
                raise
            if differences:
                raise UserError(wrong_gradients(differences, self._config))
