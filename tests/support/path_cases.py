"""Comparisons of kernels with the plain step, in a process that has Triton's interpreter.

A wrong kernel, one that raises and one without memory are planted in the operations of the kernels.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pretrain.model.build_model as build_model
from pretrain.config import Config, OptimConfig
from pretrain.kernels import PLAIN, Candidates, FastPath, Operations, adamw, operations
from pretrain.masking import IGNORED
from pretrain.model import Encoder, EncoderShape, use_path
from pretrain.trial.path_comparison import PathComparison, run_pass, tolerance
from tests.support.configs import least_config
from tests.support.streams import stream

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTHS, SEQ_LEN = [5, 11, 16, 3, 13, 9, 7], 16  # four rows
KERNELS, COMPILED, BOTH = FastPath(True, False), FastPath(False, True), FastPath(True, True)


def encoder(arch: str, precision: str) -> Encoder:
    sizes = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 48, "window": 8}
    model = Encoder(EncoderShape(arch=arch, vocab_size=90, max_positions=SEQ_LEN, pad_id=0, **sizes))
    model.initialize(3)
    return model.to(TYPES[precision])


def scaled(arch: str, precision: str, scale: float) -> Encoder:
    """An encoder, with the matrices of its layers multiplied by `scale`."""
    model = encoder(arch, precision)
    with torch.no_grad():
        for parameter in model.layers.parameters():
            if parameter.ndim > 1:
                parameter *= scale
    return model


def config(precision: str, **train: Any) -> Config:
    return least_config(train={"steps": 1, "precision": precision} | train)


def inputs() -> dict[str, Any]:
    """Four rows with two places each, in their order; the third row's last place is unused."""
    places = [row * SEQ_LEN + column for row in range(4) for column in (3, 9)]
    labels = torch.arange(10, 18)
    places[5], labels[5] = 2 * SEQ_LEN, IGNORED
    return stream(LENGTHS) | {"masked_positions": torch.tensor(places), "labels": labels, "seq_len": SEQ_LEN}


def planted(kind: str) -> Operations:
    """The kernels with a defect: "tanh" (an approximate GELU), "relu" (in its place), "raises", "memory" or none.

    "adamw raises" and "adamw" (which changes nothing) are of the optimizer's kernel.
    """
    right, error = operations(True), RuntimeError("PTX error\nmore")
    if kind.startswith("adamw"):
        return right._replace(adamw=functools.partial(_raise, error) if " " in kind else _idle)
    if kind in ("relu", "tanh"):
        wrong = {"relu": torch.relu, "tanh": functools.partial(F.gelu, approximate="tanh")}[kind]
        return right._replace(linear_gelu=lambda x, weight, bias: wrong(F.linear(x, weight, bias)))
    if kind in ("raises", "memory"):
        raised = error if kind == "raises" else torch.OutOfMemoryError("CUDA out of memory")
        return right._replace(add_norm=functools.partial(_raise, raised))
    return right


@contextmanager
def planted_kernels(kind: str) -> Iterator[None]:
    """Models that are built meanwhile get them."""
    original, build_model.operations = build_model.operations, lambda fused: planted(kind) if fused else PLAIN
    try:
        yield
    finally:
        build_model.operations = original


def _raise(error: Exception, *_: Tensor) -> None:
    raise error


def _idle(*arguments: Any) -> None:
    """A step that changes nothing where a run says whether gradients are finite, as all do."""
    if arguments[-1] is None:
        adamw(*arguments)


def reason(kind: str, known: bool, optimizer: str = "adamw") -> tuple[FastPath, str]:
    """The choice of a rank with planted kernels and plain torch, and why."""
    settings = config("fp32").model_copy(update={"optim": OptimConfig(name=optimizer)})
    candidates = Candidates((KERNELS, FastPath(False, False)), known=KERNELS if known else None)
    with planted_kernels(kind):
        comparison = PathComparison(encoder("bert", "fp32"), settings, inputs(), candidates.known)
        choice = candidates.choose(comparison.problem_of, lambda: comparison.extent)
    return choice.path, choice.reason


def problem(
    arch: str, precision: str, kind: str = "", path: FastPath = KERNELS, known: bool = False, scale: float = 1.0
) -> str | None:
    """The problem of a path with planted kernels. The model's gradients must not change.

    scale: of the matrices of the layers; large ones make rounding errors grow.
    """
    model = scaled(arch, precision, scale)
    with planted_kernels(kind):
        said = PathComparison(model, config(precision), inputs(), path if known else None).problem_of(path)
    assert all(parameter.grad is None for parameter in model.parameters())
    return said


def difference(scale: float) -> str | None:
    """How far right kernels are from the plain step, if that is above the limit, with matrices of this scale."""
    model = scaled("bert", "bf16", scale)
    plain = run_pass(model, inputs(), 4)
    use_path(model, config("bf16"), KERNELS)
    return run_pass(model, inputs(), 4).difference_from(plain, tolerance("bf16", model.shape.layers))


def rows_compared(most: int) -> tuple[str | None, str]:
    """The problem of right kernels, and the extent, where a plain step of more than `most` rows has no memory."""
    model = encoder("bert", "fp32")
    plain_forward = model.forward

    def forward(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        if model.operations is PLAIN and len(tokens) > most * SEQ_LEN:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain_forward(tokens, *args, **kwargs)

    model.forward = forward
    comparison = PathComparison(model, config("fp32"), inputs())
    return comparison.problem_of(KERNELS), comparison.extent


def losses_of_rows() -> list[float]:
    """Losses of the first row, of the first three rows, and of all four."""
    model, given = encoder("modernbert", "fp32"), inputs()
    return [run_pass(model, given, rows).loss for rows in (1, 3, 4)]
