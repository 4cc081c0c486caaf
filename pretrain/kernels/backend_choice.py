"""Choose how a run computes: the backend of attention, the version of flash attention, Triton kernels, torch.compile.

`Candidates` are the combinations that a config allows, and `choose` takes the first that agrees with the plain step.
`ComputeBackends` says what was chosen, and why attention is not flash attention. Does not import torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

from pretrain.config import Config
from pretrain.kernels.flash_attention import BUILT_IN

Attention = Literal["varlen", "sdpa"]
_PRECISIONS = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_AS_BEFORE = "as at the last start: "


class Fallback(NamedTuple):
    """The reason for attention without varlen, and what to change; no advice where there is no GPU."""

    reason: str
    advice: str = ""


def attention_fallback(device: str, precision: str, per_head: int, dropout: float) -> Fallback | None:
    """Say why attention cannot be varlen (flash attention over documents); None if it can.

    Args:
        device: the type of torch's device.
        precision: as train.precision.
        per_head: dimensions of a head.
    """
    if device != "cuda":
        return Fallback(f"the device is {device}, not cuda")
    reasons = []
    if precision not in ("bf16", "fp16"):
        reasons.append(Fallback(f"train.precision is {precision}", "set train.precision to bf16 or fp16"))
    if dropout:
        reasons.append(Fallback(f"model.dropout is {dropout}", "set model.dropout to 0"))
    if per_head % 8:
        advice = "choose a model.size whose hidden / heads is a multiple of 8"
        reasons.append(Fallback(f"heads have {per_head} dimensions, not a multiple of 8", advice))
    if not reasons:
        return None
    return Fallback("; ".join(each.reason for each in reasons), "; ".join(each.advice for each in reasons))


def fastest_attention(device: str, dtype: str, per_head: int, dropout: float) -> Attention:
    """The fastest attention for tensors of this type of device and torch's dtype; see attention_fallback."""
    return "sdpa" if attention_fallback(device, _PRECISIONS.get(dtype, "fp32"), per_head, dropout) else "varlen"


class FastPath(NamedTuple):
    """How a native encoder computes attention, and what lies between its matrix products.

    fused: with Triton kernels. compiled: by torch.compile. flash: the version of flash attention, where it is used.
    """

    fused: bool
    compiled: bool
    flash: int = BUILT_IN

    @classmethod
    def of(cls, config: Config) -> "FastPath":
        """The path of a config; plain where it says `auto`."""
        train = config.train
        flash = BUILT_IN if train.flash_attention == "auto" else train.flash_attention
        return cls(train.fused_kernels is True, train.compile is True, flash)

    @property
    def kernels(self) -> str:
        """What computes between matrix products: "plain", "Triton", "compiled" or "Triton and compiled"."""
        names = ["Triton"] * self.fused + ["compiled"] * self.compiled
        return " and ".join(names) or "plain"

    def as_settings(self) -> dict[str, Any]:
        """The settings of `train` that fix this path."""
        return {"fused_kernels": self.fused, "compile": self.compiled, "flash_attention": self.flash}

    def __str__(self) -> str:
        return self.kernels if self.flash == BUILT_IN else f"{self.kernels} with FlashAttention {self.flash}"


@dataclass(frozen=True)
class KernelChoice:
    """The path of a run, and why; the reason is empty if the config alone decides."""

    path: FastPath
    reason: str = ""


@dataclass(frozen=True)
class Candidates:
    """The paths that a run may use, fastest first.

    paths: the last one is used without a comparison, when all others have failed.
    reason: why no faster path is tried; empty if the config allows no faster path.
    known: a path that the last start has compared, so that it need only work.
    """

    paths: tuple[FastPath, ...]
    reason: str = ""
    known: FastPath | None = None

    @classmethod
    def of(cls, config: Config, device: str, flash: int = BUILT_IN) -> "Candidates":
        """The candidates of a run on this type of device: with kernels, then without; the newer flash attention first.

        `train.compile: auto` compiles only what has no kernels. Kernels alone were 3% faster than kernels and compile
        (one H100, benchmarks/results/gpu_table.md).

        Args:
            flash: the newest version that every rank has, see FlashAttention.installed.
        """
        train = config.train
        against = _reason_against_all(config, device)
        against_compile = against or _reason_against_compile(config)
        against_flash = against or _reason_against_flash(config, device, flash)
        fused = _options(train.fused_kernels, True, False, against)
        compiled = _options(train.compile, True, False, against_compile)
        settings: list[tuple[bool | int | str, str]] = [(train.fused_kernels, against)]
        if True in fused and train.compile == "auto" and config.model.arch != "eurobert":  # which has few kernels
            compiled = (False,)
        else:
            settings.append((train.compile, against_compile))
        versions = _options(train.flash_attention, flash, BUILT_IN, against_flash)
        paths = [FastPath(*values) for values in product(fused, compiled, versions)]
        if len(fused) == len(compiled) == 2:  # without kernels that agree, compile is not tried alone
            paths = [path for path in paths if path.fused or not path.compiled]
        settings += [(train.flash_attention, against_flash)] * (flash != BUILT_IN)
        return cls(tuple(paths), next((reason for setting, reason in settings if setting == "auto" and reason), ""))

    @property
    def choice(self) -> KernelChoice | None:
        """The choice that needs no comparison; None if there are several paths."""
        return KernelChoice(self.paths[0], self.reason) if len(self.paths) == 1 else None

    def after_record(self, recorded: Mapping[str, Any], made_with: str) -> "Candidates":
        """The candidates of a resumed run on such a machine: the path of its last start, then slower ones.

        The choice is therefore the same on the same machine, whatever rounding does to gradients of trained weights.

        Args:
            recorded: values of environment.json, of the last start.
            made_with: GPU and versions of this start.
        """
        if recorded.get("kernels_made_with") != made_with or self.choice:
            return self
        last = recorded.get("kernels"), recorded.get("flash_attention", BUILT_IN)
        for number, path in enumerate(self.paths):
            if (path.kernels, path.flash) == last:
                why = recorded.get("kernels_reason", "").removeprefix(_AS_BEFORE)
                return replace(self, paths=self.paths[number:], reason=f"{_AS_BEFORE}{why}", known=path)
        return self

    def choose(self, problem_of: Callable[[FastPath], str | None], extent: Callable[[], str]) -> KernelChoice:
        """The first path without a problem, and the problems of those before it.

        Args:
            problem_of: compares a path with the plain step; None if they agree.
            extent: what the comparison covered.
        """
        problems = [self.reason] if self.reason else []
        for path in self.paths[:-1]:
            problem = problem_of(path)
            if problem is None and path == self.known:
                return KernelChoice(path, self.reason)
            if problem is None:
                return KernelChoice(path, "; ".join([f"agrees with the plain step on {extent()}", *problems]))
            problems.append(f"{path}: {problem}")
        return KernelChoice(self.paths[-1], "; ".join(problems))


def _options(setting: int | str, newest: int, plain: int, against: str) -> tuple[Any, ...]:
    """The values of a setting to try, fastest first."""
    if setting != "auto":
        return (setting,)
    return (plain,) if against or newest == plain else (newest, plain)


def _reason_against_all(config: Config, device: str) -> str:
    if device != "cuda":
        return "no GPU"
    if config.model.arch == "auto":
        return "model.arch is auto"
    if config.zero.stage == 3:
        return "zero.stage is 3, whose split weights one process cannot compare"
    if not config.guard.dry_run:
        return "guard.dry_run is false, so nothing compares faster paths"
    return ""


def _reason_against_compile(config: Config) -> str:
    if config.run.deterministic:
        return "no torch.compile: run.deterministic is true, and it chooses code by timing"
    if config.model.dropout:
        return "no torch.compile: model.dropout is set, and it sets other values to zero"
    return ""


def _reason_against_flash(config: Config, device: str, version: int) -> str:
    if config.run.deterministic:
        return f"no FlashAttention {version}: run.deterministic is true, and its gradients differ from run to run"
    fallback = _config_fallback(config, device)
    return f"no flash attention: {fallback.reason}" if fallback else ""


def _config_fallback(config: Config, device: str) -> Fallback | None:
    model = config.model
    return attention_fallback(device, config.train.precision, model.size.hidden // model.size.heads, model.dropout)


@dataclass(frozen=True)
class ComputeBackends:
    """How a run computes attention, and what lies between its matrix products.

    attention: "varlen" (flash attention over documents), "sdpa" or, with arch auto, "transformers".
    kernels: "plain" (operations of torch), "Triton", "compiled" (torch.compile) or "Triton and compiled"; "auto"
        before a trial step has compared them.
    fallback: why attention is sdpa.
    kernels_reason: why these kernels, and this version of flash attention; empty if the config says it.
    flash: the version of flash attention; None before a start has found what is installed, and without varlen.
    """

    attention: str
    kernels: str
    fallback: Fallback | None = None
    kernels_reason: str = ""
    flash: int | None = None

    @classmethod
    def of(cls, config: Config, device: str, choice: KernelChoice | None = None) -> "ComputeBackends":
        """The backends of a run on this type of device. choice: of the trial step."""
        candidates = Candidates.of(config, device)
        known = choice or candidates.choice
        kernels = known.path.kernels if known else "auto"
        why = known.reason if known else f"the trial step compares {candidates.paths[0]} with plain"
        if config.model.arch == "auto":
            return cls("transformers", kernels, kernels_reason=why)
        if fallback := _config_fallback(config, device):
            return cls("sdpa", kernels, fallback, why)
        return cls("varlen", kernels, kernels_reason=why, flash=choice.path.flash if choice else None)

    @property
    def advice(self) -> str:
        """What to change for flash attention; empty if there is nothing to change."""
        return f"for flash attention, {self.fallback.advice}" if self.fallback and self.fallback.advice else ""

    @property
    def start_line(self) -> str:
        """The line for the start of a run: a warning if there is something to change."""
        return f"warning: {self}; {self.advice}" if self.advice else str(self)

    def __str__(self) -> str:
        """One line for people: "attention varlen (FlashAttention 2), kernels plain"."""
        more = ""
        if self.attention == "varlen":
            more = f" (FlashAttention {self.flash})" if self.flash else " (flash attention)"
        if self.fallback:
            more = f" ({self.fallback.reason})"
        why = f" ({self.kernels_reason})" if self.kernels_reason else ""
        return f"attention {self.attention}{more}, kernels {self.kernels}{why}"

    def as_values(self) -> dict[str, Any]:
        """The values for environment.json."""
        reason = {"attention_reason": self.fallback.reason} if self.fallback else {}
        why = {"kernels_reason": self.kernels_reason} if self.kernels_reason else {}
        version = {"flash_attention": self.flash} if self.flash else {}
        return {"attention": self.attention, **version, **reason, "kernels": self.kernels, **why}
