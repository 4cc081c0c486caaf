"""Steps of benchmarks/gpu_table.py: models whose weights are drawn on the device, their speeds, profiles and rivals.

All sides of a case take the same batches, from the loader of a run.
"""

import contextlib
import functools
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

from benchmarks.product_rates import seconds_of
from benchmarks.step_parts import profiled
from benchmarks.step_sides import Maskwright, decay_groups, measured
from benchmarks.step_work import CASES, SEED, Batch, Case, FlatWeights, Round, Setting, Weights, Work
from data_prep.format import Manifest, ShardWriter, TokenizerInfo
from pretrain.data import DeviceBatch
from pretrain.engine import MATRIX_GROUPS
from pretrain.kernels import PLAIN, FlashAttention, Operations, Rotation, Tiles, adamw, operations, use_version
from pretrain.masking import IGNORED
from pretrain.model import Encoder
from pretrain.model.attention import DocumentBounds, attention
from pretrain.model.families import hugging_face_model
from pretrain.optim.parameter_groups import described, parameter_groups

PROFILED = ("modernbert-base-1024", "modernbert-base-8192", "base-512")
STEPS = (*PROFILED, "large-512", "mmbert-base-1024")
MEDIAN_LENGTH, SIGMA = 250, 1.0  # log-normal lengths of synthetic documents, in tokens
INIT_STD = 0.02
KINDS = {  # of GPU kernels, and of torch's operators on a CPU: patterns of names; the first that fits
    "attention": "_window_|flash|fmha|attention",
    "products": "gemm|nvjet|cutlass|xmma|splitk|cublas|aten::(mm|addmm|bmm)",
    "cross-entropy": "^_logits_|cross_entropy|softmax|nll_loss",
    "optimizer": "multi_tensor|adam|foreach|lpnorm",
    "copies": "memcpy|memset|copy|catarray|aten::cat|fill",
    "elementwise": "^_|norm|gelu|elementwise|reduce|embedding|index|triton_|compute_grad_weight|aten::(mul|add|sum)",
}
Values = dict[str, Any]
Unit = tuple[str, Callable[[], Values]]
Way = tuple[Operations, int]  # operations between matrix products, and the version of flash attention


@dataclass(frozen=True)
class Bench:
    """Where and on what to measure. data: a data set folder. quick: tiny models, few steps."""

    device: str
    quick: bool
    data: Path

    @property
    def cuda(self) -> bool:
        """Whether this is a GPU."""
        return self.device == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return torch.bfloat16 if self.cuda else torch.float32

    @property
    def operations(self) -> Operations:
        """The Triton kernels, or without a GPU their plain twins, so that a model takes the same paths."""
        if self.cuda:
            return operations(True)
        return PLAIN._replace(window_attention=plain_window_attention, adamw=adamw)

    def case(self, name: str) -> Case:
        """A case of benchmarks.step_work, or a tiny one of its architecture."""
        case = CASES[name]
        if not self.quick:
            return case
        size = {"layers": 2, "hidden": 64, "heads": 2}
        return replace(case, size=size, seq_len=128, vocab_size=128, rows=dict.fromkeys(case.rows, 2))

    def work(self, name: str, setting: Setting | None = None) -> Work:
        """The task of one side."""
        steps, precision = 1 if self.quick else 10, "bf16" if self.cuda else "fp32"
        setting = setting or Setting("maskwright")
        return Work(self.case(name), setting, self.data, self.device, torch.get_num_threads(), steps, precision)

    def seconds(self, call: Callable[[], Any]) -> float:
        """The time of a call; to try the script, of one call alone."""
        if not self.quick:
            return seconds_of(call, self.device)
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def ways(self, local: bool) -> dict[str, Way]:
        """The ways to compute attention, the one of a run first. local: whether some layers are local."""
        fused, ways = self.operations, {}
        for version in (2, *newer_flash(self.cuda)):
            name = f"FlashAttention {version}" if self.cuda else "sdpa"
            kernels = {f"window kernel, {name}": fused} if local else {}
            for words, using in (kernels | {name: fused._replace(window_attention=None)}).items():
                ways[words] = (using, version)
        return ways


def plain_window_attention(qkv: Tensor, heads: int, by: Rotation, tiles: Tiles, reach: int) -> Tensor:
    """The plain twin of the kernel of that name."""
    bounds = torch.cat([tiles.begin[tiles.end > 0].unique(), tiles.end.max()[None]])
    documents = DocumentBounds.of(bounds, len(qkv), len(qkv), "sdpa", reaches=(reach,))
    return attention(*PLAIN.rotate_heads(qkv, (heads,) * 3, 2, by), documents, reach)


def newer_flash(cuda: bool) -> list[int]:
    """The versions of flash attention for this GPU that are newer than torch's own; also version 3 as a mere module."""
    if not cuda:
        return []
    generation, _ = torch.cuda.get_device_capability()
    versions = {FlashAttention.installed(generation).version}
    if generation == 9 and find_spec("flash_attn_interface"):
        versions.add(3)
    return sorted(versions - {FlashAttention().version})


def synthetic(folder: Path, tokens: int, vocab_size: int) -> Path:
    """A data set of random tokens in documents of log-normal lengths, without files of a tokenizer."""
    special = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    info = TokenizerInfo("0" * 64, {}, vocab_size, special, sorted(special.values()), "##")
    rng, written = np.random.default_rng(SEED), 0
    (folder / "shards").mkdir(parents=True)
    with ShardWriter(folder / "shards", 0, info.dtype) as writer:
        while written < tokens:
            length = max(1, round(rng.lognormal(np.log(MEDIAN_LENGTH), SIGMA)))
            writer.add(rng.integers(len(special), vocab_size, length), np.array([length]))
            written += length
    Manifest.write(folder, info, writer.shards, [])
    return folder


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Draw weights on the model's device: unit norms, zero biases, normal matrices. Faster than `initialize`."""
    torch.manual_seed(SEED)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, INIT_STD)
        else:
            weight.fill_(1.0 if name.endswith("weight") else 0.0)


class OnDevice(Maskwright):
    """Maskwright with weights that are drawn on the device."""

    def __init__(self, work: Work, way: Way):
        self.work, self.device = work, torch.device(work.device)
        with self.device:
            self.model = Encoder(work.shape, operations=way[0])
        draw(self.model)
        self.model.reset_padding_rows()
        use_version(way[1])
        self._prepare()
        if way[0].adamw:
            groups = parameter_groups(described(self.model), work.config.optim, MATRIX_GROUPS)
            self.weights = FlatWeights(groups, work.config, way[0].adamw)  # type: ignore[assignment]


class FlatTransformers(OnDevice):
    """transformers at its best: all documents in one row with `cu_seq_lens`, attention by torch's `varlen_attn`, the
    head at predicted tokens alone, and nothing padded. In bf16 with fp32 copies, as Maskwright."""

    def __init__(self, work: Work, compiled: bool):
        self.work, self.device = work, torch.device(work.device)
        self.model = transformers_model(work)
        register_varlen()
        self.model.set_attn_implementation("documents")
        self.model.to(torch.bfloat16 if work.half else torch.float32)
        self.weights = Weights(decay_groups(self.model, work), work.config)
        backend = "inductor" if work.device == "cuda" else "aot_eager"  # on a CPU, code would take minutes
        self._sum = torch.compile(self._summed, dynamic=False, backend=backend) if compiled else self._summed

    def _loss(self, part: DeviceBatch) -> Tensor:
        torch._dynamo.mark_dynamic(part.cu_seqlens, 0)  # one graph for any number of documents
        return self._sum(part.tokens, part.positions, part.cu_seqlens, part.masked_positions, part.labels, part.seq_len)

    def _summed(
        self, tokens: Tensor, positions: Tensor, bounds: Tensor, places: Tensor, labels: Tensor, longest: int
    ) -> Tensor:
        lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        states = self.model.base_model(input_ids=tokens[None], position_ids=positions[None], **lengths)[0][0, places]
        modern = self.work.case.arch == "modernbert"
        logits = self.model.decoder(self.model.head(states)) if modern else self.model.cls(states)
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")


class PaddedTransformers(OnDevice):
    """transformers with a document in each padded row, in fp32 with autocast; the package packed-encoders removes the
    padding. Without a GPU, transformers alone."""

    def __init__(self, work: Work):
        self.work, self.device = work, torch.device(work.device)
        self.model = transformers_model(work)
        if work.device == "cuda":
            from packed_encoders import pack  # optional: it needs a GPU

            pack(self.model)
        self.weights = Weights(decay_groups(self.model, work), work.config)

    def _loss(self, part: DeviceBatch) -> Tensor:
        lengths = part.cu_seqlens.diff().long()
        lengths = lengths[lengths > 0]
        inside = torch.arange(part.longest, device=self.device) < lengths[:, None]
        labels = torch.full_like(part.tokens, IGNORED).scatter_(0, part.masked_positions, part.labels)
        ids, targets = torch.zeros_like(inside, dtype=torch.long), torch.full_like(inside, IGNORED, dtype=torch.long)
        ids[inside], targets[inside] = part.tokens[: lengths.sum()], labels[: lengths.sum()]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.work.device == "cuda"):
            loss = self.model(input_ids=ids, attention_mask=inside.long(), labels=targets).loss
        return loss * (part.labels != IGNORED).sum()


def transformers_model(work: Work) -> Any:
    """The model of transformers on the device; a vocabulary of a multiple of 64 is faster."""
    shape = replace(work.shape, vocab_size=work.shape.padded_vocab_size)
    with torch.device(work.device):
        encoder = Encoder(shape)
        draw(encoder)
        model = hugging_face_model(encoder.state_dict(), shape).to(work.device).train()
    model.sparse_prediction = shape.arch == "modernbert"
    return model


def register_varlen() -> None:
    """Give transformers an attention within the documents of `cu_seq_lens_q`, named "documents"; no masks are made."""
    from transformers import AttentionInterface, AttentionMaskInterface

    def within(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: None, **of: Any) -> tuple[Tensor, None]:
        window, bounds = of.get("sliding_window"), of["cu_seq_lens_q"]
        reach = None if window is None else window - 1
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        backend = "varlen" if q.is_cuda else "sdpa"
        documents = DocumentBounds.of(bounds, len(q), of["max_length_q"], backend, reaches=(reach,))
        return attention(q, k, v, documents, reach)[None], None

    AttentionInterface.register("documents", within)
    AttentionMaskInterface.register("documents", lambda **_: None)


def rounds_of(make: Callable[[], Maskwright], warm_up: int) -> Values:
    """Figures of a side: `warm_up` steps, and 2 rounds of the work's steps."""
    with closing(make) as (side, batches):
        measured(side, batches, warm_up)
        return summary(side.work, [measured(side, batches, side.work.round_steps) for _ in range(2)])


@contextlib.contextmanager
def closing(make: Callable[[], Maskwright]) -> Iterator[tuple[Maskwright, Iterator[Batch]]]:
    """A side and its batches, whose thread ends afterwards."""
    try:
        side = make()
        with contextlib.closing(side.batches()) as batches:  # type: ignore[type-var]
            yield side, batches
    finally:
        use_version(FlashAttention().version)


def summary(work: Work, rounds: list[Round]) -> Values:
    """Figures of a side.

    "TFLOP/s": operations of the whole model, for real tokens. "computed TFLOP/s": without the part of the last layer
    that Maskwright skips, because only predicted tokens pass its MLP and have queries there (on a CPU, all have).
    """
    shape, some = work.shape, work.device == "cuda"
    passed = (3 if shape.gated else 2) * shape.intermediate + (1 + some) * shape.hidden
    rates = [each.rate for each in rounds]

    def computed(each: Round) -> float:
        last = 6 * passed * shape.hidden * each.tokens + some * 12 * shape.hidden * each.pairs
        return each.flops - last * (1 - each.predictions / each.tokens)

    return {
        "ms per step": statistics.median(each.seconds / each.steps for each in rounds) * 1e3,
        "tokens per second": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "TFLOP/s": statistics.median(each.flops / each.seconds for each in rounds) / 1e12,
        "computed TFLOP/s": statistics.median(computed(each) / each.seconds for each in rounds) / 1e12,
        "peak bytes": max(each.peak_bytes for each in rounds),
        "slots filled": sum(each.tokens for each in rounds) / sum(each.slots for each in rounds),
        "squared lengths per step": sum(each.pairs for each in rounds) / sum(each.steps for each in rounds),
        "host waits per step": rounds[-1].host_waits,
        "loss of the first round": statistics.fmean(rounds[0].losses),
    }


def steps(bench: Bench) -> Iterator[Unit]:
    """Each case with each way to compute attention; the ways of runs first."""
    units = []
    for name in STEPS:
        for number, (words, way) in enumerate(bench.ways(local="modern" in name or "mmbert" in name).items()):
            make = functools.partial(OnDevice, bench.work(name), way)
            units.append((number, f"{name}: {words}", functools.partial(rounds_of, make, 1 if bench.quick else 5)))
    return iter([unit for _, *unit in sorted(units, key=lambda unit: unit[0])])  # type: ignore[misc]


def profiles(bench: Bench) -> Iterator[Unit]:
    """Where the time of a step goes, as a run computes it."""
    for name in PROFILED:
        way = next(iter(bench.ways("modern" in name).values()))
        make = functools.partial(OnDevice, bench.work(name), way)
        yield name, functools.partial(profile_of, make, 1 if bench.quick else 3)


def profile_of(make: Callable[[], Maskwright], count: int) -> Values:
    """Milliseconds per step by kind of kernel, "idle" included; and the kernels that take most, with their kinds.

    On a CPU, operators replace kernels; the time of an operator is without the operators inside it.
    """
    with closing(make) as (side, batches):
        cuda = side.work.device == "cuda"
        for batch in islice(batches, 5 if cuda else 0):
            side.step(batch)
        spans = []
        for event in profiled(side, batches, count, set() if cuda else {ProfilerActivity.CPU}):
            on_host = str(event.device_type).endswith("CPU")
            if on_host is not cuda and not event.name.startswith(("part: ", "Optimizer.", "ProfilerStep")):  # ranges
                begin, end = event.time_range.start, event.time_range.end
                spans.append((event.name, begin, end if cuda else begin + event.self_cpu_time_total))
        return by_kind(spans, count)


def by_kind(spans: list[tuple[str, float, float]], count: int) -> Values:
    """See `profile_of`."""
    times, kinds, busy, last = Counter[str](), Counter[str](), 0.0, 0.0
    for name, begin, end in sorted(spans, key=lambda span: span[1]):
        times[name] += end - begin
        kinds[kind_of(name)] += end - begin
        busy, last = busy + max(0.0, end - max(begin, last)), max(end, last)
    whole = last - min(begin for _, begin, _ in spans)
    of_a_step = 1e3 * count
    kernels = [[kind_of(name), name[:120], time / of_a_step] for name, time in times.most_common(25)]
    totals = {kind: time / of_a_step for kind, time in kinds.most_common()}
    return {"step": whole / of_a_step, **totals, "idle": (whole - busy) / of_a_step, "kernels": kernels}


def kind_of(kernel: str) -> str:
    """One of KINDS, or "other"."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), "other")


def transformers_at_best(bench: Bench) -> Iterator[Unit]:
    """transformers at its best, without and with torch.compile."""
    for name in ("modernbert-base-1024", "base-512")[: 1 if bench.quick else 2]:
        for compiled in (False, True):
            make = functools.partial(FlatTransformers, bench.work(name), compiled)
            words = f"{name}: one row{', compiled' * compiled}"
            yield words, functools.partial(rounds_of, make, 1 if bench.quick else 5)


def packed_encoders(bench: Bench) -> Iterator[Unit]:
    """transformers with the package packed-encoders."""
    name = "modernbert-base-1024"
    make = functools.partial(PaddedTransformers, bench.work(name))
    yield f"{name}: packed-encoders", functools.partial(rounds_of, make, 1 if bench.quick else 5)
