"""Cases, settings, batches and rounds of benchmarks/step.py, and the optimizers of its sides."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.profiler import record_function

from data_prep.format import Dataset
from pretrain.config import Config
from pretrain.model import EncoderShape, describe_model

SEED = 7
GRAD_CLIP = 1.0


@dataclass(frozen=True)
class Case:
    """A model, and rows of `seq_len` slots with the share `rate` predicted; `rows` per step, by kind of device."""

    name: str
    arch: str
    size: str | dict[str, int]
    seq_len: int
    rate: float
    vocab_size: int
    rows: dict[str, int]


_BERT, _MODERN = ("bert", 0.15, 30522), ("modernbert", 0.3, 50368)
_MMBERT = ("modernbert", 0.3, 256_000)  # ModernBERT-base with a multilingual vocabulary


def _case(name: str, form: tuple[str, float, int], cpu: int, cuda: int) -> Case:
    (arch, rate, vocab_size), (size, seq_len) = form, name.split("-")[-2:]
    return Case(name, arch, size, int(seq_len), rate, vocab_size, {"cpu": cpu, "cuda": cuda})


# 65,536 slots per step on a GPU; on a CPU 4,096, or fewer for large models.
CASES = {
    case.name: case
    for case in (
        _case("mini-128", _BERT, cpu=32, cuda=512),
        _case("mini-512", _BERT, cpu=8, cuda=128),
        _case("base-128", _BERT, cpu=16, cuda=512),
        _case("base-512", _BERT, cpu=4, cuda=128),
        _case("modernbert-base-1024", _MODERN, cpu=2, cuda=64),
        _case("modernbert-base-8192", _MODERN, cpu=1, cuda=8),
        _case("mmbert-base-1024", _MMBERT, cpu=2, cuda=64),
        _case("large-512", _BERT, cpu=2, cuda=128),
    )
}


@dataclass(frozen=True)
class Setting:
    """One way of doing a step.

    side: maskwright, deepspeed (Maskwright's engine) or transformers.
    micro: micro-batches per step.
    fused: with Maskwright's Triton kernels.
    attention, padding (to the "longest" of a batch, or "row": to seq_len), by_length: only for transformers.
    autocast: in bf16, transformers with fp32 weights and autocast; otherwise bf16 weights and fp32 copies.
    deterministic: Maskwright's engine with run.deterministic.
    """

    side: str
    micro: int = 1
    compiled: bool = False
    fused: bool = False
    attention: str = "sdpa"
    padding: str = "longest"
    by_length: bool = False
    autocast: bool = False
    deterministic: bool = False

    @property
    def title(self) -> str:
        words = [self.side]
        if self.side == "transformers":
            to = "the longest of a batch" if self.padding == "longest" else "whole rows"
            words += [self.attention, f"padded to {to}", "sorted by length" if self.by_length else "any order"]
        if self.micro > 1:
            words.append(f"{self.micro} micro-batches")
        words += ["compiled"] * self.compiled + ["fused kernels"] * self.fused + ["autocast"] * self.autocast
        words += ["deterministic"] * self.deterministic
        return ", ".join(words)


@dataclass(frozen=True)
class Work:
    """The task of a side; `data` is the data set's folder, `round_steps` the steps per round; fp32 or bf16."""

    case: Case
    setting: Setting
    data: Path
    device: str
    threads: int
    round_steps: int
    precision: str

    @cached_property
    def config(self) -> Config:
        case, rows = self.case, self.case.rows[self.device]
        return Config.model_validate(
            {
                "run": {"dir": "unused", "seed": SEED, "deterministic": self.setting.deterministic},
                "data": {"train": str(self.data), "seq_len": case.seq_len},
                "masking": {"rate": case.rate},
                "model": {"arch": case.arch, "size": case.size},
                "optim": {"grad_clip": GRAD_CLIP},
                "train": {
                    "steps": 10**9,
                    "global_batch_size": rows,
                    "micro_batch_size": rows // self.setting.micro,
                    "precision": "bf16" if self.half else "fp32",
                },
                "zero": {"stage": 1 if self.half else 0},
            }
        )

    @property
    def half(self) -> bool:
        """Whether weights are bf16."""
        return self.precision == "bf16" and not self.setting.autocast

    @cached_property
    def shape(self) -> EncoderShape:
        """The model, with the vocabulary of the case or, if larger, of the data set."""
        info = Dataset(self.data).manifest.tokenizer
        return replace(
            EncoderShape(**describe_model(self.config, info)), vocab_size=max(self.case.vocab_size, info.vocab_size)
        )


@dataclass(frozen=True)
class Batch:
    """Micro-batches of a step for the side's model; predictions; lengths of documents [D]; slots."""

    inputs: list[Any]
    predictions: int
    lengths: NDArray[np.int64]
    slots: int

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory; torch's DataLoader calls it."""
        pinned = [{name: tensor.pin_memory() for name, tensor in part.items()} for part in self.inputs]
        return replace(self, inputs=pinned)


@dataclass
class Round:
    """Results of a side in one round.

    slots, tokens: all slots of its batches, and slots with a token.
    pairs: sum of the documents' squared lengths.
    predictions: labels that count.
    flops: operations that the model needs (pretrain.model.model_costs).
    losses: mean cross-entropy of each step.
    peak_bytes: peak memory of the device or of the process.
    host_waits: operations of one further step that make the host wait for the GPU; None on a CPU.
    """

    steps: int = 0
    seconds: float = 0.0
    slots: int = 0
    tokens: int = 0
    pairs: int = 0
    predictions: int = 0
    flops: float = 0.0
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    host_waits: int | None = None

    @property
    def rate(self) -> float:
        """Real tokens per second."""
        return self.tokens / self.seconds


class Side(Protocol):
    """Endless batches, and a step with one of them that returns the summed cross-entropy."""

    work: Work
    model: nn.Module

    def batches(self) -> Iterator[Batch]: ...

    def step(self, batch: Batch) -> Tensor: ...


class Weights:
    """AdamW on a model's weights, or on fp32 copies of bf16 weights."""

    def __init__(self, groups: list[dict[str, Any]], config: Config):
        self._weights = [weight for group in groups for weight in group["params"]]
        self._half = self._weights[0].dtype != torch.float32
        if self._half:
            groups = [group | {"params": [p.detach().float() for p in group["params"]]} for group in groups]
        self._copies = [weight for group in groups for weight in group["params"]]
        optim = config.optim
        self._adam = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Clip, step, and clear the gradients; return their norm."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        with record_function("part: clipping"):
            if self._half:
                for copy, weight in zip(self._copies, self._weights, strict=True):
                    copy.grad = None if weight.grad is None else weight.grad.float()
            norm = torch.nn.utils.clip_grad_norm_(self._copies, GRAD_CLIP)
        with record_function("part: optimizer"):
            self._adam.step()
            if self._half:
                torch._foreach_copy_(self._weights, self._copies)
            for weight in (*self._copies, *self._weights):
                weight.grad = None
        return norm


class FlatWeights:
    """AdamW as the engine has it with the kernel: gradients of a group go to one tensor of the model's precision.

    The model's weights become views of one tensor for each group.
    """

    def __init__(self, groups: list[dict[str, Any]], config: Config, kernel: Callable[..., None]):
        self._settings, self._kernel = config.optim, kernel
        self._decays = [group["weight_decay"] for group in groups]
        self._weights = [weight for group in groups for weight in group["params"]]
        self._views: list[Tensor] = []  # of the gradients
        self._copies = [torch.cat([p.detach().reshape(-1) for p in group["params"]]) for group in groups]
        self._gradients = [torch.zeros_like(copy) for copy in self._copies]
        self._masters = [copy.float().clone() for copy in self._copies]
        self._states = [
            {"step": copy.new_zeros(()), "exp_avg": torch.zeros_like(copy), "exp_avg_sq": torch.zeros_like(copy)}
            for copy in self._masters
        ]
        for group, copy, gradient in zip(groups, self._copies, self._gradients, strict=True):
            sizes = [weight.numel() for weight in group["params"]]
            self._views += [part.view_as(p) for part, p in zip(gradient.split(sizes), group["params"], strict=True)]
            for weight, part in zip(group["params"], copy.split(sizes), strict=True):
                weight.data = part.view_as(weight)

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Clip, step, and clear the gradients; return their norm."""
        with record_function("part: clipping"):
            torch._foreach_copy_(self._views, [weight.grad for weight in self._weights])
            norms = torch._foreach_norm(self._gradients, 2, dtype=torch.float32)
            norm = torch.linalg.vector_norm(torch.stack(norms))
        with record_function("part: optimizer"):
            settings = {"lr": lr, "betas": self._settings.betas, "eps": self._settings.eps}
            divisor = (norm / GRAD_CLIP).clamp(min=1)
            tensors = zip(self._masters, self._gradients, self._states, self._copies, strict=True)
            for each, decay in zip(tensors, self._decays, strict=True):
                self._kernel(*([part] for part in each), settings | {"weight_decay": decay}, divisor, None)
            for weight in self._weights:
                weight.grad = None
        return norm
