"""Phases of benchmarks/gpu_table.py. Each measures one thing.

A phase yields names with JSON values as soon as it has measured them. A name can come again with more.
"""

import platform
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import engine
from benchmarks.engine_ranks import compare_engines, on_ranks
from benchmarks.gpu_constants import FASTEST, model_rates, node_collectives, optimizer_bandwidth
from benchmarks.gpu_repeats import compare_repetitions, compared, repeating, run_once
from benchmarks.step import asked, best_of_transformers, in_sequence, process, warm_up
from benchmarks.step_parts import gemm_tflops, seconds_of
from benchmarks.step_work import CASES, SEED, Round, Setting, Work
from data_prep.common.errors import UserError, one_line
from pretrain.kernels import Attention, FlashAttention, use_version
from pretrain.model import peak_tflops
from pretrain.model.attention import DocumentBounds, attention
from pretrain.model.model_costs import pairs_seen

# In order of value: what is measured before the time is over is worth the most.
GPU_CASES = (
    "base-512",
    "modernbert-base-1024",
    "base-128",
    "large-512",
    "mmbert-base-1024",
    "modernbert-base-8192",
)
CPU_CASES = ("mini-128",)
SCALED_CASES = ("base-512", "modernbert-base-1024", "large-512")  # whose rates the scaling model reads
VARIANTS = {
    "plain": Setting("maskwright"),
    "fused": Setting("maskwright", fused=True),
    "compiled": Setting("maskwright", compiled=True),
    "fused and compiled": Setting("maskwright", fused=True, compiled=True),
}
PACKED = Setting("transformers", autocast=True, packed=True)
HEADS, PER_HEAD = 12, 64
MEDIAN_LENGTH, SIGMA = 250, 1.0  # log-normal lengths of documents, in tokens, for the phase of attention
SHAPES = ((512, None), (1024, None), (1024, 64), (8192, None), (8192, 64))  # slots of a row; reach of local attention
SWITCH = {"off": False, "on": True}  # run.deterministic
RESULTS = ("output", "dQ", "dK", "dV")  # of a layer's attention
Result = dict[str, Any]
Results = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Request:
    """Settings of a measurement.

    data: a data set folder. device: cuda or cpu. threads: of a CPU. quick: few steps, to try the script. variants:
    names of VARIANTS to measure. search_seconds: time to look for the best settings of transformers.
    """

    data: Path
    device: str
    threads: int
    quick: bool
    variants: tuple[str, ...] = tuple(VARIANTS)
    search_seconds: float = 300.0

    @property
    def settings(self) -> dict[str, Setting]:
        """The variants to measure on this device."""
        names = self.variants if self.device == "cuda" else ("plain",)
        return {name: VARIANTS[name] for name in names}

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the cases, see benchmarks.step_work.CASES."""
        return GPU_CASES if self.device == "cuda" and not self.quick else CPU_CASES

    @property
    def rounds(self) -> int:
        """Rounds of each side."""
        return 1 if self.quick else 3

    def work(self, case: str, setting: Setting) -> Work:
        """The task of one side."""
        steps = 2 if self.quick else 20 if self.device == "cuda" else 4
        precision = "bf16" if self.device == "cuda" else "fp32"
        return Work(CASES[case], setting, self.data, self.device, self.threads, steps, precision)


@dataclass(frozen=True)
class Phase:
    """A named measurement, and the minutes after which it is ended."""

    name: str
    minutes: float
    measure: Callable[[Request], Results]


def phases(request: Request) -> list[Phase]:
    """All phases in order of value."""
    steps = [Phase(f"steps {case}", 8, partial(steps_of, case)) for case in request.cases]
    rivals = [Phase(f"rivals {case}", 10, partial(rivals_of, case)) for case in request.cases]
    compiled = request.cases[:2] if request.device == "cuda" else ()
    return [
        Phase("versions", 2, versions),
        Phase("products", 3, products),
        *(phase for pair in zip(steps, rivals, strict=True) for phase in pair),
        Phase("attention", 4, attention_of_backends),
        Phase("operations", 4, operations),
        Phase("repeated attention", 4, repeated_attention),
        *(Phase(f"repeated runs {case}", 8, partial(repeated_runs, case, False)) for case in request.cases[:2]),
        *(Phase(f"repeated compiled runs {case}", 12, partial(repeated_runs, case, True)) for case in compiled),
        Phase("ranks", 10, ranks),
        Phase("constants", 8, constants),
    ]


def versions(request: Request) -> Results:
    """Versions of packages, and the devices."""
    yield "python", platform.python_version()
    for name in ("torch", "triton", "transformers", "deepspeed", "flash-attn", "packed-encoders"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
    if request.device == "cuda":
        yield "devices", [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        yield "CUDA", torch.version.cuda
        yield "peak TFLOP/s", peak_tflops(torch.cuda.get_device_name())


def products(request: Request) -> Results:
    """TFLOP/s of the matrix products of each case."""
    torch.set_num_threads(request.threads)
    for name in request.cases:
        work = request.work(name, VARIANTS["plain"])
        slots = work.case.rows[request.device] * work.case.seq_len
        yield name, gemm_tflops(work, slots, round(work.case.rate * slots))


def steps_of(case: str, request: Request) -> Results:
    """The step of a case in each variant, one after the other; the message of a variant that failed."""
    variants = request.settings
    for flash in newer_flash(request.device):
        variants = variants | {f"fused, FlashAttention {flash}": replace(FASTEST["cuda"], flash=flash)}
    for name, setting in variants.items():
        yield name, _measured(request, request.work(case, setting))


def rivals_of(case: str, request: Request) -> Results:
    """transformers with its fastest settings, and with packed-encoders for ModernBERT."""
    work = request.work(case, VARIANTS["plain"])
    best, trials = best_of_transformers(work, seconds=0.0 if request.quick else request.search_seconds)
    settings = [setting for setting in best if trials.get(setting.title, 1.0)]
    if request.device == "cuda" and work.case.arch == "modernbert":
        settings.append(PACKED)
    yield "trials", trials
    found: Result = {}
    for setting in settings:
        found[setting.title] = _measured(request, replace(work, setting=setting))
        yield "sides", found


def _measured(request: Request, work: Work) -> Result:
    """Medians of the rounds of a side; or the reason why it failed."""
    try:
        (rounds,) = in_sequence([work], request.rounds).values()
    except Exception as error:
        return {"failed": str(error).strip().splitlines()[-1]}
    return summary(work, rounds)


def summary(work: Work, rounds: list[Round]) -> Result:
    """Figures of a side.

    "TFLOP/s": operations of the whole model, for real tokens. "computed TFLOP/s": without the part of the last
    layer's MLP that Maskwright skips, because only predicted tokens pass it.
    """
    shape = work.shape
    matrices = 3 if shape.gated else 2
    rates = [one.rate for one in rounds]
    skipped = [6 * (one.tokens - one.predictions) * matrices * shape.hidden * shape.intermediate for one in rounds]
    return {
        "tokens per second": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "TFLOP/s": statistics.median(one.flops / one.seconds for one in rounds) / 1e12,
        "computed TFLOP/s": statistics.median(
            (one.flops - less) / one.seconds for one, less in zip(rounds, skipped, strict=True)
        )
        / 1e12,
        "peak bytes": max(one.peak_bytes for one in rounds),
        "slots filled": sum(one.tokens for one in rounds) / sum(one.slots for one in rounds),
        "squared lengths per step": sum(one.pairs for one in rounds) / sum(one.steps for one in rounds),
        "host waits per step": rounds[-1].host_waits,
        "loss of the first round": statistics.fmean(rounds[0].losses),
    }


def attention_of_backends(request: Request) -> Results:
    """A layer's attention, forward and backward, for each backend: 12 heads of 64 dimensions."""
    return by_shape(SHAPES[:1] if request.quick else SHAPES, request.device, partial(_attention, request.device))


def by_shape(
    shapes: Iterable[tuple[int, int | None]], device: str, measure: Callable[[Attention, int, int, int | None], Result]
) -> Results:
    """What `measure` finds for each shape with each backend and version of flash attention."""
    for seq_len, reach in shapes:
        width = "all tokens" if reach is None else f"{reach} tokens on either side"
        backends = attention_backends(device)
        found = {name: measure(backend, flash, seq_len, reach) for name, backend, flash in backends}
        yield f"rows of {seq_len:,}, {width}", found


def attention_backends(device: str) -> Iterator[tuple[str, Attention, int]]:
    """Name, backend and version of flash attention of each way to compute attention."""
    if device == "cuda":
        yield from ((f"FlashAttention {flash}", "varlen", flash) for flash in (2, *newer_flash(device)))
    yield "sdpa", "sdpa", 2


def newer_flash(device: str) -> list[int]:
    """The version of flash attention that is installed for this GPU, if it is newer than torch's own."""
    if device != "cuda":
        return []
    newest = FlashAttention.installed(torch.cuda.get_device_capability()[0]).version
    return [newest] if newest != FlashAttention().version else []


def _attention(device: str, backend: Attention, flash: int, seq_len: int, reach: int | None) -> Result:
    """Milliseconds, and TFLOP/s of the pairs of tokens that attend to each other; or the reason why it failed."""
    try:
        use_version(flash)
        return _timed_attention(device, backend, seq_len, reach)
    except (RuntimeError, UserError) as error:  # a young package may refuse a shape
        return {"failed": one_line(str(error), 200)}
    finally:
        use_version(FlashAttention().version)


def _timed_attention(device: str, backend: Attention, seq_len: int, reach: int | None) -> Result:
    leaves, gradient, documents, lengths = _layer(device, backend, seq_len, reach)
    seconds = seconds_of(lambda: torch.autograd.grad(attention(*leaves, documents, reach), leaves, gradient), device)
    flops = 12 * HEADS * PER_HEAD * pairs_seen(lengths, reach, causal=False)
    return {"milliseconds": seconds * 1e3, "TFLOP/s": flops / seconds / 1e12}


def _layer(
    device: str, backend: Attention, seq_len: int, reach: int | None
) -> tuple[list[Tensor], Tensor, DocumentBounds, NDArray[np.int64]]:
    """Query, key and value; a gradient of the output; bounds and lengths of documents. The same numbers each time."""
    n, dtype = (65_536, torch.bfloat16) if device == "cuda" else (2048, torch.float32)
    lengths = document_lengths(n, seq_len)
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    documents = DocumentBounds.of(bounds, n, seq_len, backend, reaches=(reach,))
    generator = torch.Generator(device).manual_seed(SEED)
    numbers = torch.randn((4, n, HEADS, PER_HEAD), generator=generator, device=device, dtype=dtype)
    *inputs, gradient = numbers.unbind()
    return [tensor.requires_grad_() for tensor in inputs], gradient, documents, lengths


def document_lengths(n: int, seq_len: int) -> NDArray[np.int64]:
    """Log-normal lengths of documents that fill `n` slots in rows of `seq_len`."""
    rng, lengths, used = np.random.default_rng(SEED), [], 0
    while used < n:
        length = max(3, round(rng.lognormal(np.log(MEDIAN_LENGTH), SIGMA)))
        lengths.append(min(length, seq_len - used % seq_len))
        used += lengths[-1]
    return np.array(lengths)


def operations(request: Request) -> Results:
    """The ten operations that take most of a step, in milliseconds per step, for the first cases."""
    for case in request.cases[:2]:
        for variant, setting in request.settings.items():
            work = request.work(case, setting)
            with process(work) as side:
                warm_up(side, work)
                yield f"{case}, {variant}", asked(side, "operations", 1 if request.quick else 5)


def repeated_runs(case: str, compiled: bool, request: Request) -> Results:
    """Two runs of the engine with one seed, without and with run.deterministic, for the variants that are compiled or
    those that are not; or why one failed."""
    for name, setting in request.settings.items():
        if setting.compiled == compiled:
            runs = {
                switch: _two_runs(request, case, replace(setting, deterministic=on)) for switch, on in SWITCH.items()
            }
            yield name, runs


def _two_runs(request: Request, case: str, setting: Setting) -> Result:
    work = request.work(case, replace(setting, side="deepspeed"))
    try:
        return compared(*(run_once(work, warm_up=1 if request.quick else 5) for _ in range(2)))
    except Exception as error:
        return {"failed": str(error).strip().splitlines()[-1]}


def repeated_attention(request: Request) -> Results:
    """A layer's output and gradients, several times with each backend, without and with run.deterministic."""

    def switched(*of: Any) -> Result:
        return {switch: _repeated(request, on, *of) for switch, on in SWITCH.items()}

    return by_shape(SHAPES[1:3] if request.quick else SHAPES[1:], request.device, switched)


def _repeated(request: Request, on: bool, backend: Attention, flash: int, seq_len: int, reach: int | None) -> Result:
    def compute() -> tuple[Tensor, ...]:
        out = attention(*leaves, documents, reach)
        return out, *torch.autograd.grad(out, leaves, gradient)

    try:
        leaves, gradient, documents, _ = _layer(request.device, backend, seq_len, reach)
        with repeating(flash, on):
            return compare_repetitions(compute, RESULTS, 3 if request.quick else 10)
    except (AssertionError, RuntimeError, UserError) as error:  # no deterministic mode, or none for this GPU
        return {"failed": one_line(str(error), 200)}


def ranks(request: Request) -> Results:
    """Milliseconds of a step with DistributedDataParallel and with the engine's ZeRO 1, for each number of ranks."""
    settings: Result = {"stages": [1], "accumulation": 1, "rounds": 5, "steps": 10, "skip": 3}
    settings |= (engine.GPU if request.device == "cuda" else engine.CPU) | (engine.QUICK if request.quick else {})
    most = torch.cuda.device_count() if request.device == "cuda" else 2
    for count in (count for count in (1, 2, 4, 8) if count <= most):
        rounds = on_ranks(compare_engines, settings, count, request.device)["rounds"]
        yield str(count), {side: 1e3 * statistics.median(one[side] for one in rounds) for side in rounds[0]}


def constants(request: Request) -> Results:
    """Figures of the scaling model of `maskwright plan`."""
    torch.set_num_threads(request.threads)
    cases = [case for case in request.cases if case in (*SCALED_CASES, *CPU_CASES)]
    most = torch.cuda.device_count() if request.device == "cuda" else 2
    counts = [count for count in (2, 4, 8) if count <= most]
    yield "memory bytes per second", optimizer_bandwidth(request.device, request.quick)
    yield "ranks", {str(count): node_collectives(request.device, request.quick, count) for count in counts}
    yield "rates", model_rates([request.work(case, FASTEST[request.device]) for case in cases])
