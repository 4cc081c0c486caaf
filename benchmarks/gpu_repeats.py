"""The item `determinism` of benchmarks/gpu_table.py: do the same computations give the same bits?

Two runs with one seed, each in its own process, and one layer's attention several times in one process. On a CPU all
are equal. On a GPU, additions in a varying order make a difference, unless run.deterministic forbids them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.gpu_kernels import MASKED, RESULTS, ROW_BOUND, SHAPES, Attend, Layer, attends, layer_of_step, seen
from benchmarks.gpu_steps import Bench, Unit, Values
from benchmarks.step import asked, process
from benchmarks.step_work import Setting, Work
from pretrain.engine import make_deterministic
from pretrain.kernels import FlashAttention, use_version

_DETERMINISTIC = ", deterministic"
VARIANTS = {
    "plain": Setting("deepspeed"),
    "Triton kernels": Setting("deepspeed", fused=True),
    "compiled": Setting("deepspeed", compiled=True),
}


@dataclass(frozen=True)
class Run:
    """A short run: loss of each step, fp32 weights after the last by name, and real tokens per second at the end."""

    losses: list[float]
    weights: dict[str, NDArray[np.float32]]
    rate: float


def determinism(bench: Bench) -> Iterator[Unit]:
    """Repeated attention of a layer, and two runs with one seed, without and with run.deterministic."""
    for name, reach in SHAPES[1:3] if bench.quick else SHAPES[1:]:
        layer = layer_of_step(bench, name)
        for words, (attend, flash) in attends(bench, layer, reach).items():
            for on in (False, True) if words != MASKED and ROW_BOUND not in words else ():
                unit = f"attention, {bench.case(name).seq_len:,}, {seen(reach)}: {words}{_DETERMINISTIC * on}"
                yield unit, partial(repeated_attention, layer, attend, flash, on, 3 if bench.quick else 10)
    for name in ("base-512", "modernbert-base-1024")[: 1 if bench.quick else 2]:
        for words, setting in VARIANTS.items() if bench.cuda else [("plain", VARIANTS["plain"])]:
            for on in (False, True):
                work = bench.work(name, replace(setting, deterministic=on))
                yield f"runs, {name}: {words}{_DETERMINISTIC * on}", partial(two_runs, work)


def repeated_attention(layer: Layer, attend: Attend, flash: int, on: bool, count: int) -> Values:
    """See `compare_repetitions`. on: with run.deterministic."""

    def compute() -> list[Tensor]:
        leaf = layer.qkv.clone().requires_grad_()
        out = attend(leaf)
        return [out, *torch.autograd.grad(out, leaf, layer.gradient)[0].chunk(3, dim=1)]

    with repeating(flash, on):
        return compare_repetitions(compute, RESULTS, count)


def two_runs(work: Work) -> Values:
    """See `compared`."""
    return compared(*(run_once(work, work.round_steps) for _ in range(2)))


def run_once(work: Work, warm_up: int) -> Run:
    """Train in a new process: `warm_up` steps, which may compile, and then the measured ones."""
    with process(work) as side:
        first = asked(side, "round", warm_up)
        last = asked(side, "round", work.round_steps)
        return Run(first.losses + last.losses, asked(side, "weights", 0), last.rate)


def compared(one: Run, other: Run) -> dict[str, Any]:
    """Whether two runs are equal bit by bit, and their largest relative differences.

    "weights": of a parameter, the norm of the difference divided by its norm. "tokens per second": the mean.
    """
    pairs = [(one.weights[name], other.weights[name]) for name in one.weights]
    return {
        "steps": len(one.losses),
        "equal": one.losses == other.losses and all(np.array_equal(a, b) for a, b in pairs),
        "losses": largest(abs(a - b) / abs(a) for a, b in zip(one.losses, other.losses, strict=True)),
        "weights": largest(float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30)) for a, b in pairs),
        "tokens per second": (one.rate + other.rate) / 2,
    }


def largest(differences: Iterator[float]) -> float:
    """The largest difference; infinite if one is not a number."""
    return max(math.inf if math.isnan(one) else one for one in differences)


def compare_repetitions(compute: Callable[[], Sequence[Tensor]], names: Sequence[str], count: int) -> dict[str, Any]:
    """Compute `count` times, and compare all results with the first.

    Returns, for each name of a result, how many repetitions differ in any bit, and the largest difference relative to
    the largest value.
    """
    first = [one.detach().clone() for one in compute()]
    differ, most = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    for _ in range(count - 1):
        for name, wanted, found in zip(names, first, compute(), strict=True):
            if not torch.equal(wanted, found):
                difference = float((found.float() - wanted.float()).abs().max() / wanted.float().abs().max())
                differ[name], most[name] = differ[name] + 1, largest(iter((most[name], difference)))
    return {"repetitions": count - 1} | {name: {"differ": differ[name], "by": most[name]} for name in names}


@contextmanager
def repeating(flash: int, deterministic: bool) -> Iterator[None]:
    """Inside, torch uses this version of flash attention, and operations are as with run.deterministic."""
    make_deterministic()  # in any case: cuBLAS reads its variable once
    torch.use_deterministic_algorithms(deterministic)
    try:
        use_version(flash)
        yield
    finally:
        use_version(FlashAttention().version)
        torch.use_deterministic_algorithms(False)
