"""Compare loss and gradients of a faster path with the plain step, on this rank's rows.

The passes go through the model alone: they exchange nothing between ranks and leave no gradients, so a pass that
fails on a rank leaves the engine unchanged.
"""

import gc
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from data_prep.common.errors import UserError, one_line
from pretrain.config import Config
from pretrain.distributed import all_gather_json
from pretrain.engine import uses_flat_gradients
from pretrain.kernels import Candidates, FastPath, KernelChoice, adamw_difference
from pretrain.masking import RowGroup
from pretrain.model import Encoder, use_path

# The last two: cuBLAS makes its workspace when a thread multiplies first, which may be when the GPU is full.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED", "STATUS_NOT_INITIALIZED")
# Roundings that reach a difference of gradients, for each layer: about 16 results are rounded in the forward pass and
# 16 in the backward pass, in each of two steps. Errors of independent roundings add up as the square root of their
# number.
_ROUNDINGS = 64
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LEAST = 1e-5  # the order of sums alone may differ by more than the roundings of a small fp32 model suggest
_OF_LOSS = 8  # the errors of many predictions cancel out in the loss, so that its limit is smaller
_FLOOR = 1e-3  # of the norm of all gradients: below it, a parameter's own gradient may be rounding alone
_TIMES = 3  # errors of two right steps, relative to fp32, differ by less, since each is a sum of many roundings


def is_out_of_memory(error: Exception) -> bool:
    """Whether this is lack of memory, on a GPU or on the host."""
    memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return memory or any(said in str(error) for said in _OUT_OF_MEMORY)


def free_memory() -> None:
    """Give memory of dropped tensors back to the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def tolerance(precision: str, layers: int) -> float:
    """The largest relative difference between gradients of two right steps: eps * sqrt(64 * layers), 1e-5 at least.

    For 12 layers 0.22 in bf16 (eps is 2**-7), 0.027 in fp16 and 1e-5 in fp32. Measured with new weights in Triton's
    interpreter, which cuts off where a GPU rounds: 0.10 in bf16 and 6e-7 in fp32. The limit for the loss is an eighth,
    1e-5 at least.
    """
    return max(float(torch.finfo(_TYPES[precision]).eps) * math.sqrt(_ROUNDINGS * layers), _LEAST)


@dataclass(frozen=True)
class PassResult:
    """A forward and backward pass over `rows` rows: the sum of the loss, and gradients by name, on the host."""

    rows: int
    loss: float
    gradients: dict[str, Tensor]

    def difference_from(self, plain: "PassResult", limit: float) -> str | None:
        """What differs from the plain pass by more than `limit`, relative; None if nothing does."""
        loss = abs(self.loss - plain.loss) / max(abs(plain.loss), 1e-30)
        if not loss <= (of_loss := max(limit / _OF_LOSS, _LEAST)):
            return f"the loss differs by {loss:.2g} of its size from the plain step, more than {of_loss:.2g}"
        distances = self.distances(plain)
        name = max(distances, key=lambda key: math.inf if math.isnan(distances[key]) else distances[key])
        worst = distances[name]
        if worst <= limit:
            return None
        return f"the gradient of {name} differs by {worst:.2g} of its norm from the plain step, more than {limit:.2g}"

    def distances(self, other: "PassResult") -> dict[str, float]:
        """By parameter, how far the gradient is from another pass's, relative to that one's norm."""
        norms = {name: float(gradient.float().norm()) for name, gradient in other.gradients.items()}
        least = max(_FLOOR * math.hypot(*norms.values()), 1e-30)
        return {
            name: float((self.gradients[name].float() - gradient.float()).norm()) / max(norms[name], least)
            for name, gradient in other.gradients.items()
        }

    def is_as_exact(self, plain: "PassResult", exact: "PassResult", limit: float) -> bool:
        """Whether loss and gradients are at most three times as far from fp32 as the plain pass's are.

        limit: distances below it are not compared.
        """
        of_loss = [abs(result.loss - exact.loss) / max(abs(exact.loss), 1e-30) for result in (self, plain)]
        pairs = [(*of_loss, limit / _OF_LOSS)]
        own, of_plain = self.distances(exact), plain.distances(exact)
        pairs += [(own[name], of_plain[name], limit) for name in own]
        return all(distance <= max(_TIMES * allowed, least) for distance, allowed, least in pairs)


def run_pass(model: nn.Module, inputs: dict[str, Any], rows: int) -> PassResult:
    """A forward and backward pass over the first rows; no `.grad` changes, and no hook of an optimizer runs."""
    parameters = dict(model.named_parameters())
    device = inputs["tokens"].device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)  # the same dropout in each pass
        prediction = model(**first_rows(inputs, rows))
        gradients = torch.autograd.grad(prediction.loss, list(parameters.values()), materialize_grads=True)
    named = {name: gradient.cpu() for name, gradient in zip(parameters, gradients, strict=True)}
    return PassResult(rows, prediction.loss.item(), named)


def first_rows(inputs: dict[str, Any], rows: int) -> dict[str, Any]:
    """The inputs of a forward pass, cut to their first rows."""
    seq_len = inputs["seq_len"]
    whole = len(inputs["tokens"]) // seq_len
    if rows == whole:
        return inputs
    groups, slots, bounds = _first_groups(inputs.get("groups", ()), rows), rows * seq_len, inputs["cu_seqlens"]
    predictions = sum(group.places for group in groups) or rows * (len(inputs["labels"]) // whole)
    cut = {name: inputs[name][:slots] for name in ("tokens", "positions")}
    cut |= {name: inputs[name][:predictions] for name in ("masked_positions", "labels")}
    weights = inputs.get("weights")
    weights = None if weights is None else weights[:predictions]
    return cut | {"cu_seqlens": bounds[bounds <= slots], "seq_len": seq_len, "weights": weights, "groups": groups}


def _first_groups(groups: tuple[RowGroup, ...], rows: int) -> tuple[RowGroup, ...]:
    """The groups of the first rows."""
    first = []
    for group in groups:
        kept = min(group.rows, rows)
        if kept:
            first.append(group._replace(rows=kept, places=group.places // group.rows * kept))
        rows -= kept
    return tuple(first)


def fp32_copy(model: Encoder) -> Encoder:
    """A model with the same weights in fp32, which computes with plain operations and little memory."""
    copy = Encoder(model.shape, model.z_loss).to(model.word_embedding.device)
    copy.load_state_dict(model.state_dict())
    copy.checkpoint_layers()
    return copy


def largest_pass(model: nn.Module, inputs: dict[str, Any]) -> PassResult | None:
    """A pass over all rows; if memory is short, over half of them and so on. None if not even one row fits."""
    rows = len(inputs["tokens"]) // inputs["seq_len"]
    while rows:
        try:
            return run_pass(model, inputs, rows)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        free_memory()
        rows //= 2
    return None


class PathComparison:
    """Compares paths of a model with its plain step on the same rows; the model is left on some path.

    Args:
        model: of any rank, with the weights of the start.
        inputs: of a forward pass, as DeviceBatch.inputs.
        known: a path that need only work.
    """

    def __init__(self, model: Encoder, config: Config, inputs: dict[str, Any], known: FastPath | None = None):
        self._model, self._config, self._inputs, self._known = model, config, inputs, known
        self._limit = tolerance(config.train.precision, model.shape.layers)
        self._plain: PassResult | None = None

    def problem_of(self, path: FastPath) -> str | None:
        """Why this rank cannot use the path: an error, or what differs; None if it agrees with the plain step."""
        try:
            if self._plain is None and path != self._known:
                use_path(self._model, self._config, FastPath(False, False))
                self._plain = largest_pass(self._model, self._inputs)
                if self._plain is None:
                    return "memory does not suffice for a plain step of one row"
            use_path(self._model, self._config, path)
            if problem := self._problem_of_step():
                return problem
            if self._plain is None or path == self._known:
                return None if largest_pass(self._model, self._inputs) else "memory does not suffice for one row"
            result = run_pass(self._model, self._inputs, self._plain.rows)
            problem = result.difference_from(self._plain, self._limit)
            return None if problem and self._is_as_exact(result, self._plain) else problem
        except Exception as error:  # of a compiler, a kernel or memory: a slower path may work
            said = one_line(str(error), 200)
            return said if isinstance(error, UserError) else f"{type(error).__name__}: {said}"
        finally:
            free_memory()

    def _problem_of_step(self) -> str | None:
        """How the optimizer's kernel differs from plain torch, if the run uses one."""
        config, kernel = self._config, self._model.operations.adamw
        if not kernel or config.optim.name != "adamw" or not uses_flat_gradients(config):
            return None
        weight = self._model.word_embedding
        try:
            difference = adamw_difference(kernel, weight.dtype, weight.device)
        except Exception as error:
            return one_line(f"the kernel of AdamW: {type(error).__name__}: {error}", 200)
        return None if difference <= _LEAST else f"a step of AdamW differs by {difference:.2g} from plain torch"

    def _is_as_exact(self, result: PassResult, plain: PassResult) -> bool:
        """Whether both passes are about as far from one in fp32: weights may make rounding errors grow.

        Not known with dropout, which drops other values in fp32, and where memory does not suffice.
        """
        if self._config.train.precision == "fp32" or self._config.model.dropout:
            return False
        try:
            exact = run_pass(fp32_copy(self._model), self._inputs, plain.rows)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return result.is_as_exact(plain, exact, self._limit)

    @property
    def extent(self) -> str:
        """The rows that were compared: "all 32 rows", or "8 of 32 rows, as the plain step needs more memory"."""
        whole = len(self._inputs["tokens"]) // self._inputs["seq_len"]
        rows = self._plain.rows if self._plain else 0
        return f"{rows} rows" if rows == whole else f"{rows} of {whole} rows, as memory is short for a plain step"


def agreed_path(model: Encoder, config: Config, candidates: Candidates, inputs: dict[str, Any]) -> KernelChoice:
    """The first path that agrees with the plain step on every rank; the model uses it afterwards. A collective."""
    if candidates.choice:
        return candidates.choice
    comparison = PathComparison(model, config, inputs, candidates.known)

    def agreed_problem(path: FastPath) -> str | None:
        problems = all_gather_json(comparison.problem_of(path))
        rank = next((rank for rank, problem in enumerate(problems) if problem is not None), None)
        return None if rank is None else f"{problems[rank]} (rank {rank})"

    choice = candidates.choose(agreed_problem, lambda: comparison.extent)
    use_path(model, config, choice.path)
    return choice
