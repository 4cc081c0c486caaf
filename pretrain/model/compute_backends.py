"""The attention and the kernels of a run, and why attention is not flash attention. Does not import torch."""

import ast
import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.config import Config
from pretrain.model.fast_path import Candidates, KernelChoice


class Fallback(NamedTuple):
    """The reason for attention without varlen, and what to change; no advice where there is no GPU."""

    reason: str
    advice: str = ""


def attention_fallback(device: str, precision: str, per_head: int, dropout: float, window: bool) -> Fallback | None:
    """Say why attention cannot be varlen (flash attention over documents); None if it can.

    Args:
        device: the type of torch's device.
        precision: as train.precision.
        per_head: dimensions of a head.
        window: whether varlen_attn has the argument window_size, see varlen_has_window.
    """
    if device != "cuda":
        return Fallback(f"the device is {device}, not cuda")
    found = []
    if precision not in ("bf16", "fp16"):
        found.append(Fallback(f"train.precision is {precision}", "set train.precision to bf16 or fp16"))
    if dropout:
        found.append(Fallback(f"model.dropout is {dropout}", "set model.dropout to 0"))
    if per_head % 8:
        advice = "choose a model.size whose hidden / heads is a multiple of 8"
        found.append(Fallback(f"heads have {per_head} dimensions, not a multiple of 8", advice))
    if not window:
        advice = "install a torch that has it, such as 2.13"
        found.append(Fallback("varlen_attn of this torch has no argument window_size", advice))
    if not found:
        return None
    return Fallback("; ".join(one.reason for one in found), "; ".join(one.advice for one in found))


@functools.cache
def varlen_has_window(torch_folder: Path | None = None) -> bool:
    """Whether torch's varlen_attn has the argument window_size, which causal and local attention need.

    Some builds of torch 2.11 lack it. The source is read, because importing torch takes seconds.

    Args:
        torch_folder: the package; the installed one by default.
    """
    if torch_folder is None:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return False
        torch_folder = Path(spec.origin).parent
    try:
        source = ast.parse((torch_folder / "nn/attention/varlen.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return False
    functions = (one for one in source.body if isinstance(one, ast.FunctionDef) and one.name == "varlen_attn")
    return any(arg.arg == "window_size" for one in functions for arg in (*one.args.args, *one.args.kwonlyargs))


@dataclass(frozen=True)
class ComputeBackends:
    """How a run computes attention, and what lies between its matrix products.

    attention: "varlen" (flash attention over documents), "sdpa" or, with arch auto, "transformers".
    kernels: "plain" (operations of torch), "Triton", "compiled" (torch.compile) or "Triton and compiled"; "auto"
        before a trial step has compared them.
    fallback: why attention is sdpa.
    kernels_reason: why these kernels; empty if the config says it.
    """

    attention: str
    kernels: str
    fallback: Fallback | None = None
    kernels_reason: str = ""

    @classmethod
    def of(
        cls, config: Config, device: str, window: bool | None = None, choice: KernelChoice | None = None
    ) -> "ComputeBackends":
        """The backends of a run on this type of device.

        Args:
            window: see attention_fallback; by default, what the installed torch has.
            choice: of the trial step.
        """
        train, model = config.train, config.model
        candidates = Candidates.of(config, device)
        choice = choice or candidates.choice
        kernels = str(choice.path) if choice else "auto"
        why = choice.reason if choice else f"the trial step compares {candidates.paths[0]} with plain"
        if model.arch == "auto":
            return cls("transformers", kernels, kernels_reason=why)
        per_head = model.size.hidden // model.size.heads
        window = varlen_has_window() if window is None else window
        fallback = attention_fallback(device, train.precision, per_head, model.dropout, window)
        return cls("sdpa" if fallback else "varlen", kernels, fallback, why)

    @property
    def advice(self) -> str:
        """What to change for flash attention; empty if there is nothing to change."""
        return f"for flash attention, {self.fallback.advice}" if self.fallback and self.fallback.advice else ""

    @property
    def start_line(self) -> str:
        """The line for the start of a run: a warning if there is something to change."""
        return f"warning: {self}; {self.advice}" if self.advice else str(self)

    def __str__(self) -> str:
        """One line for people: "attention varlen (flash), kernels plain"."""
        more = {"varlen": " (flash)"}.get(self.attention, "")
        if self.fallback:
            more = f" ({self.fallback.reason})"
        why = f" ({self.kernels_reason})" if self.kernels_reason else ""
        return f"attention {self.attention}{more}, kernels {self.kernels}{why}"

    def as_values(self) -> dict[str, Any]:
        """The values for environment.json."""
        reason = {"attention_reason": self.fallback.reason} if self.fallback else {}
        why = {"kernels_reason": self.kernels_reason} if self.kernels_reason else {}
        return {"attention": self.attention, **reason, "kernels": self.kernels, **why}
