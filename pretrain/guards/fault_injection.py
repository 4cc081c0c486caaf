"""Fault injection for tests: MASKWRIGHT_FAULTS="nan_gradient:rank=1,step=7;...".

Faults occur only if the variable is set; rank 0 then prints a warning. Kinds, with their arguments:

nan_gradient: the gradient of one parameter on one rank has a NaN (rank, step).
lost_gradient: one rank's gradient of one parameter is lost before it is reduced; ZeRO 0 and 1 (rank, step).
bad_batch: a step whose batch begins at this row of the stream has a far too high learning rate (row).
flip_bit: a bit of one rank's weights flips after the step (rank, step).
kill: the process is killed before the step (rank, step).
stop: the process is stopped before the step, as on a node that is lost (rank, step).
hang: the rank never begins the step (rank, step).
slow: each step of the rank, from this step, takes longer (rank, step, seconds).
"""

import os
import signal
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn

from data_prep.common.errors import UserError

_VARIABLE = "MASKWRIGHT_FAULTS"
_KINDS = {
    "nan_gradient": {"rank", "step"},
    "lost_gradient": {"rank", "step"},
    "bad_batch": {"row"},
    "flip_bit": {"rank", "step"},
    "kill": {"rank", "step"},
    "stop": {"rank", "step"},
    "hang": {"rank", "step"},
    "slow": {"rank", "step", "seconds"},
}


@dataclass(frozen=True)
class Fault:
    """A fault and its arguments."""

    kind: str
    when: dict[str, float]


def parse(text: str) -> tuple[Fault, ...]:
    """Parse the value of MASKWRIGHT_FAULTS.

    Raises:
        UserError: if the value is not a list of faults.
    """
    faults = []
    for part in filter(None, text.split(";")):
        kind, _, rest = part.partition(":")
        pairs = dict(pair.partition("=")[::2] for pair in rest.split(","))
        if _KINDS.get(kind) != pairs.keys():
            raise UserError(f"{_VARIABLE} has {part!r}, which is no fault; unset it")
        faults.append(Fault(kind, {name: float(value) for name, value in pairs.items()}))
    return tuple(faults)


class Faults:
    """Faults of this rank; by default from MASKWRIGHT_FAULTS.

    planned: whether there are any. The model is asked for only then: its weights may be on their way.
    """

    def __init__(self, rank: int, value: str | None = None):
        faults = parse(os.environ.get(_VARIABLE, "") if value is None else value)
        self._faults = [fault for fault in faults if fault.when.get("rank", rank) == rank]
        self.planned = bool(self._faults)
        if faults and rank == 0:
            print(f"warning: {_VARIABLE} is set: this run harms itself on purpose", file=sys.stderr, flush=True)

    def before_step(self, step: int, model: nn.Module) -> None:
        """Inject the faults that are due before the step, in the given order."""
        for fault in self._faults:
            due = fault.when.get("step")
            if fault.kind == "slow" and due is not None and step >= due:
                _delay_forward(model, fault.when["seconds"])
            elif due != step:
                continue
            elif fault.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif fault.kind == "hang":
                while True:
                    time.sleep(1)
            elif fault.kind == "nan_gradient":
                _poison_gradient(model)
            elif fault.kind == "lost_gradient":
                _lose_gradient(model)

    def lr_factor(self, row: int) -> float:
        """The factor on the learning rate of the step whose batch begins at this row of the stream."""
        return 1000.0 if any(f.kind == "bad_batch" and f.when["row"] == row for f in self._faults) else 1.0

    def after_step(self, step: int, model: nn.Module) -> None:
        """Inject the faults that are due after the step."""
        for fault in self._faults:
            if fault.kind == "flip_bit" and fault.when["step"] == step:
                _flip_bit(model)


def _delay_forward(model: nn.Module, seconds: float) -> None:
    """Delay the next forward pass."""

    def wait(module: nn.Module, inputs: object) -> None:
        handle.remove()
        time.sleep(seconds)

    handle = model.register_forward_pre_hook(wait)


def _poison_gradient(model: nn.Module) -> None:
    """Put a NaN into the next gradient of the last parameter."""
    *_, parameter = model.parameters()

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        poisoned = gradient.clone()
        poisoned.view(-1)[0] = torch.nan
        return poisoned

    handle = parameter.register_hook(poison)


def _lose_gradient(model: nn.Module) -> None:
    """Set the next gradient of the last parameter to zero, after autograd."""
    *_, parameter = model.parameters()

    def lose(parameter: torch.Tensor) -> None:
        handle.remove()
        if parameter.grad is not None:
            parameter.grad.zero_()

    handle = parameter.register_post_accumulate_grad_hook(lose)


def _flip_bit(model: nn.Module) -> None:
    """Flip the lowest bit of the first weight of the first parameter that this rank holds."""
    parameter = next(p for p in model.parameters() if p.numel())
    integers = parameter.data.view(-1).view({2: torch.int16, 4: torch.int32}[parameter.element_size()])
    integers[0] ^= 1
