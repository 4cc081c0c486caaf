"""Faults in the steps of a real training, from outside: FAULTY_STEPS="nan_gradient:rank=1,step=7;...".

`variables` gives the environment of processes that harm themselves: with it, Python imports `site/sitecustomize.py`
from PYTHONPATH at its start, and that calls `install`. So it works under every launcher. The fork server calls
`install` in processes that it forks. Kinds of faults, with their arguments:

nan_gradient: the gradient of one parameter on one rank has a NaN (rank, step).
lost_gradient: one rank loses its gradient of one parameter before the sum; ZeRO 0 and 1 (rank, step; 0: trial step).
bad_batch: a step whose batch begins at this row of the stream has a far too high learning rate (row).
flip_bit: a bit of one rank's weights flips after the step (rank, step).
kill: the process is killed before the step (rank, step).
stop: the process is stopped before the step, as on a node that is lost (rank, step).
hang: the rank never begins the step (rank, step).
slow: each step of the rank, from this step, takes longer (rank, step, seconds).
"""

import functools
import importlib.util
import os
import signal
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a command line that trains nothing does not import torch
    import torch
    from torch import nn

VARIABLE = "FAULTY_STEPS"
_LOOP = "pretrain.loop.step_loop"
_ROOT = Path(__file__).resolve().parents[2]


def variables(*faults: str) -> dict[str, str]:
    """Environment variables of processes with these faults."""
    path = [str(_ROOT / "tests/support/site"), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: ";".join(faults), "PYTHONPATH": os.pathsep.join(path)}


def install() -> None:
    """If this process is a rank with faults, put them into its step loop as soon as that is imported."""
    if VARIABLE not in os.environ or "RANK" not in os.environ:
        return
    if _LOOP in sys.modules:
        _wrap(sys.modules[_LOOP])
    else:
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Wraps the step loop when it is imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _LOOP:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.loader
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(loop: ModuleType) -> None:
    """Inject faults between the batches of a step and the step, and after it."""
    from pretrain.data import Prefetcher

    faults = Faults(int(os.environ["RANK"]), os.environ[VARIABLE])
    if not faults.planned:
        return
    init, take_step, take_batches = loop.Engine.__init__, loop.Engine.step, Prefetcher.next
    engines, rows = [], []

    @functools.wraps(init)
    def remember_engine(engine: Any, *arguments: Any, **named: Any) -> None:
        init(engine, *arguments, **named)
        engines[:] = [engine]
        faults.before_step(0, engine.module)

    @functools.wraps(take_batches)
    def harm_before(prefetcher: Any) -> Any:
        (engine,) = engines
        faults.before_step(engine.marker.at.step, engine.module)
        loaded = take_batches(prefetcher)
        rows[:] = [loaded.step.before.dealt]
        return loaded

    @functools.wraps(take_step)
    def harm_after(engine: Any, batches: Any, weights: Any, lr: float, *arguments: Any, **named: Any) -> Any:
        output = take_step(engine, batches, weights, lr * faults.lr_factor(rows[0]), *arguments, **named)
        faults.after_step(engine.marker.at.step, engine.module)
        return output

    loop.Engine.__init__, loop.Engine.step, Prefetcher.next = remember_engine, harm_after, harm_before


class Faults:
    """The faults of this rank, from the value of FAULTY_STEPS. `planned`: whether there are any."""

    def __init__(self, rank: int, text: str):
        faults = []
        for part in filter(None, text.split(";")):
            kind, _, rest = part.partition(":")
            assert kind in (*_BEFORE, "slow", "bad_batch", "flip_bit"), f"{VARIABLE} has {part!r}"
            pairs = (pair.split("=") for pair in rest.split(","))
            faults.append((kind, {name: float(value) for name, value in pairs}))
        self._faults = [(kind, given) for kind, given in faults if given.get("rank", rank) == rank]
        self.planned = bool(self._faults)

    def before_step(self, step: int, model: "nn.Module") -> None:
        """Inject the faults that are due before the step, in the given order."""
        for kind, given in self._faults:
            if kind == "slow" and step >= given["step"]:
                _delay_forward(model, given["seconds"])
            elif kind in _BEFORE and step == given["step"]:
                _BEFORE[kind](model)

    def lr_factor(self, row: int) -> float:
        """The factor on the learning rate of the step whose batch begins at this row of the stream."""
        return 1000.0 if ("bad_batch", {"row": row}) in self._faults else 1.0

    def after_step(self, step: int, model: "nn.Module") -> None:
        """Inject the faults that are due after the step."""
        for kind, given in self._faults:
            if kind == "flip_bit" and given["step"] == step:
                _flip_bit(model)


def _hang(model: "nn.Module") -> None:
    while True:
        time.sleep(1)


def _delay_forward(model: "nn.Module", seconds: float) -> None:
    """Delay the next forward pass."""

    def wait(module: "nn.Module", inputs: object) -> None:
        handle.remove()
        time.sleep(seconds)

    handle = model.register_forward_pre_hook(wait)


def _poison_gradient(model: "nn.Module") -> None:
    """Put a NaN into the next gradient of the last parameter."""
    *_, parameter = model.parameters()

    def poison(gradient: "torch.Tensor") -> "torch.Tensor":
        handle.remove()
        poisoned = gradient.clone()
        poisoned.view(-1)[0] = float("nan")
        return poisoned

    handle = parameter.register_hook(poison)


def _lose_gradient(model: "nn.Module") -> None:
    """Set the next gradient of the last parameter to zero, after autograd."""
    *_, parameter = model.parameters()

    def lose(parameter: "torch.Tensor") -> None:
        handle.remove()
        if parameter.grad is not None:
            parameter.grad.zero_()

    handle = parameter.register_post_accumulate_grad_hook(lose)


def _flip_bit(model: "nn.Module") -> None:
    """Flip the lowest bit of the first weight of the first parameter that this rank holds."""
    import torch

    parameter = next(p for p in model.parameters() if p.numel())
    integers = parameter.data.view(-1).view({2: torch.int16, 4: torch.int32}[parameter.element_size()])
    integers[0] ^= 1


_BEFORE = {
    "kill": lambda model: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda model: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "nan_gradient": _poison_gradient,
    "lost_gradient": _lose_gradient,
}
