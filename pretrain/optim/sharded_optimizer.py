"""Base class of all optimizers: state for tensors that hold parameter pieces, skipped steps, averaged weights.

ZeRO passes flat fp32 tensors that hold parameters cut anywhere, and calls the optimizer for one group of them or all.
`set_fragments` sets which pieces these are, so norms and matrices refer to whole parameters and are the same on any
number of ranks.
Only PyTorch's fused kernels write weights and state. They do nothing if `found_inf` is 1: a step is skipped on the
device, bit for bit, and the host does not wait.
"""

import inspect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from pretrain.config import OptimConfig
from pretrain.kernels import adamw
from pretrain.optim.parameter_fragments import Piece, RankPieces, Segments, shares_of
from pretrain.optim.parameter_groups import Described, parameter_groups

AVERAGE: Final = "ema"  # key of the averaged weights in a tensor's state


class ShardedOptimizer(torch.optim.Optimizer):
    """An optimizer over whole parameters, or over the pieces set with `set_fragments`.

    Attributes:
        found_inf: None, or fp32 [] on the tensors' device; 1.0 keeps weights, state and step counts unchanged.
        grad_scale: None, or fp32 [] on the tensors' device: `step` divides the gradients by it.
        divides_in_kernel: whether the fused kernel does so. Otherwise it is a pass over the gradients.
        in_model: where `divides_in_kernel`, of each tensor without `grad` its gradient, and the weights that the model
            computes with, which `step` sets. Both are of any precision.
        kernel: what steps on them, as pretrain.kernels.plain.adamw.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None
    divides_in_kernel: ClassVar[bool] = False

    # PyTorch's, without its wrapper that imports the compiler: 1.5 s of every start.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    def __init__(self, parameters: list[Described], config: OptimConfig, depths: int = 1):
        self._ema = config.ema
        self.in_model: dict[Tensor, tuple[Tensor, Tensor]] = {}
        self.kernel: Callable[..., None] = adamw
        self._shapes = {p.name: p.shape for p in parameters}
        self._shares: dict[Tensor, RankPieces] = {
            p.parameter: RankPieces([[Piece(p.name, 0, p.parameter.numel(), 0)]]) for p in parameters
        }
        self._segments: dict[tuple[Tensor, ...], Segments] = {}
        # `fused` makes PyTorch keep step counts on the device, also when it loads them.
        defaults = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "fused": True}
        super().__init__(parameter_groups(parameters, config, depths), defaults)

    def set_fragments(self, tensors: Sequence[tuple[Tensor, list[Piece]]]) -> None:
        """Set the tensors to update and the parameter pieces that they hold; a collective."""
        shares = shares_of([pieces for _, pieces in tensors])
        self._shares = {tensor: share for (tensor, _), share in zip(tensors, shares, strict=True)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update tensors that have gradients, and create missing state; a collective if parameters are cut.

        Groups of a kind are updated together, so that collectives are as many for any number of groups.
        """
        assert closure is None, "gradients come from DeepSpeed"
        for _, alike in itertools.groupby(self.param_groups, lambda group: group["kind"]):
            groups = [*alike]
            for group in groups:
                self._prepare(group)
            held = [tensor for group in groups for tensor in group["params"]]
            tensors = [tensor for tensor in held if tensor.grad is not None or tensor in self.in_model]
            if tensors:
                if self.grad_scale is not None and not self.divides_in_kernel:
                    torch._foreach_mul_(gradients(tensors), 1 / self.grad_scale)
                self.update(groups[0], tensors)
                if self._ema is not None:
                    # Polyak averaging: average - (1 - ema) * (average - w), which this kernel computes from -w.
                    averages = self._state(tensors, AVERAGE)
                    self._sgd(averages, tensors, lr=1 - self._ema, weight_decay=1.0, maximize=True)

    @abstractmethod
    def update(self, group: dict[str, Any], tensors: list[Tensor]) -> None:
        """Update tensors of a kind with their gradients. `group`: the settings, which are the same for the kind."""

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state except averaged weights: "step", and zero-initialised tensors like the weights."""
        return "step", "exp_avg", "exp_avg_sq"

    def _prepare(self, group: dict[str, Any]) -> None:
        """Create missing state; remove state of another optimizer or of an earlier setting."""
        wanted = (*self.state_names(group), *([AVERAGE] if self._ema is not None else []))
        for tensor in group["params"]:
            state = self.state[tensor]
            for name in state.keys() - set(wanted):
                del state[name]
            for name in (name for name in wanted if name not in state):
                zeros = tensor.new_zeros(()) if name == "step" else torch.zeros_like(tensor)
                state[name] = tensor.detach().clone() if name == AVERAGE else zeros

    def _state(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[tensor][name] for tensor in tensors]

    def segments(self, tensors: list[Tensor]) -> Segments:
        """The pieces of parameters in these tensors."""
        key = tuple(tensors)
        if key not in self._segments:
            numels = {name: shape.numel() for name, shape in self._shapes.items()}
            self._segments[key] = Segments([self._shares[t] for t in tensors], numels, tensors[0].device)
        return self._segments[key]

    def adam(self, settings: dict[str, Any], tensors: list[Tensor], to: list[Tensor]) -> None:
        """Apply AdamW (Loshchilov and Hutter, 2019) with the gradients of `tensors` to `to`; `settings` of a group."""
        in_model = [self.in_model[tensor] for tensor in tensors] if self.in_model else []
        step = self.kernel if in_model else adamw
        step(
            to,
            [gradient for gradient, _ in in_model] or gradients(tensors),
            [self.state[tensor] for tensor in tensors],
            [weights for _, weights in in_model],
            settings,
            self.grad_scale if self.divides_in_kernel else None,
            self.found_inf,
        )

    def adam_directions(self, group: dict[str, Any], tensors: list[Tensor]) -> list[Tensor]:
        """Adam's step without a learning rate: m / (sqrt(v) + eps) + decay * w, where m and v have no bias.

        A skipped step's is decay * w.
        """
        directions = [torch.zeros_like(tensor) for tensor in tensors]
        self.adam(group | {"lr": -1.0, "weight_decay": 0.0}, tensors, directions)
        if group["weight_decay"]:
            torch._foreach_add_(directions, tensors, alpha=group["weight_decay"])
        return directions

    def descend(self, tensors: list[Tensor], directions: list[Tensor], lr: float, decay: float = 0.0) -> None:
        """w - lr * (direction + decay * w)."""
        self._sgd(tensors, directions, lr=lr, weight_decay=decay)

    def momentum_directions(self, tensors: list[Tensor], momentum: float) -> list[Tensor]:
        """Nesterov's momentum: g + momentum * m, where m is momentum * m + g; 0 if skipped."""
        directions = [torch.zeros_like(tensor) for tensor in tensors]
        buffers = self._state(tensors, "momentum_buffer")
        self._sgd(directions, gradients(tensors), buffers, lr=-1.0, momentum=momentum, nesterov=True)
        return directions

    def _sgd(
        self, to: list[Tensor], by: list[Tensor], buffers: list[Tensor] | None = None, **changes: float | bool
    ) -> None:
        settings: dict[str, Any] = {
            "weight_decay": 0.0,
            "momentum": 0.0,
            "nesterov": False,
            "maximize": False,
        } | changes
        momenta: list[Any] = buffers or [None] * len(to)
        sgd(to, by, momenta, fused=True, found_inf=self.found_inf, dampening=0.0, **settings)


def gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the tensors that have one."""
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
