"""The attention and the kernels of a run, and why attention is not flash attention. Does not import torch."""

from dataclasses import dataclass
from typing import Any

from pretrain.config import Config
from pretrain.model.fast_path import Candidates, KernelChoice
from pretrain.model.flash_attention import Fallback, attention_fallback, varlen_has_window


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
        known = choice or candidates.choice
        kernels = known.path.kernels if known else "auto"
        why = known.reason if known else f"the trial step compares {candidates.paths[0]} with plain"
        if model.arch == "auto":
            return cls("transformers", kernels, kernels_reason=why)
        per_head = model.size.hidden // model.size.heads
        window = varlen_has_window() if window is None else window
        fallback = attention_fallback(device, train.precision, per_head, model.dropout, window)
        if fallback:
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
