"""ZeRO stage 1's step on flat gradients, in place of the step of DeepSpeed's optimizer (as of 0.19).

DeepSpeed's reads all gradients again for their norm and to clip them, and gathers the weights before it returns.
"""

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.constants import default_pg_timeout
from torch import Tensor

from pretrain.config import Config
from pretrain.engine.flat_gradients import FlatGradients
from pretrain.engine.weight_gathers import WeightGathers
from pretrain.kernels import PLAIN
from pretrain.model import Encoder


class FlatGradientStep:
    """Steps the optimizer on this rank's parts of the gradients, and starts the gathers of the weights.

    Gradients are summed, and weights gathered, in a separate process group. In the default group the sums that a step
    begins with would wait for the gathers of the weights, and so would the forward pass.
    The host waits for the device in fp16 alone, where it must know whether to lower the loss scale.

    Args:
        inner: DeepSpeed's engine of ZeRO 1 without offload.

    Attributes:
        norm: of all gradients, with the loss scale: fp32 [] on the device, set before each step.
    """

    norm: Tensor

    def __init__(self, inner: Any, config: Config):
        model = inner.module
        by_layer = lambda: isinstance(model, Encoder) and not model.is_compiled  # noqa: E731
        overlap, self._fp16 = config.zero.overlap, config.train.precision == "fp16"
        inner.enable_backward_allreduce = False
        self._ranks = dist.new_group(timeout=default_pg_timeout) if dist.get_world_size() > 1 and overlap else None
        self._optimizer = inner.optimizer
        self.gradients = FlatGradients(self._optimizer, self._ranks, inner.communication_data_type, overlap)
        self.weights = WeightGathers(self._optimizer, self._ranks, model, by_layer, overlap)
        self._optimizer.step = self._step
        self._model, self._kernel = model, PLAIN.adamw

    def begin(self, last: bool) -> None:
        """Expect a backward pass, the `last` of a step or not. The optimizer uses the kernel of the model."""
        divides = self._optimizer.optimizer.divides_in_kernel
        self._kernel = getattr(self._model, "operations", PLAIN).adamw if divides else None
        self.gradients.begin(last, converts=self._kernel is None)

    def _step(self) -> None:
        optimizer, scale = self._optimizer, self._optimizer.loss_scale
        optimizer.overflow = self._fp16 and not self.norm.isfinite().item()
        optimizer._update_scale(optimizer.overflow)
        optimizer._global_grad_norm = self.norm / scale
        if not optimizer.overflow:
            self._update(scale)
        optimizer.averaged_gradients.update(dict.fromkeys(optimizer.averaged_gradients))

    @torch.no_grad()
    def _update(self, scale: float) -> None:
        optimizer, inner = self._optimizer, self._optimizer.optimizer
        masters = optimizer.single_partition_of_fp32_groups
        inner.grad_scale = self._divisor(scale)
        if self._kernel:
            pairs = zip(self.gradients.parts, self.weights.parts, strict=True)
            inner.kernel, inner.in_model = self._kernel, dict(zip(masters, pairs, strict=True))
            inner.step()
            inner.in_model = {}
        else:
            for master, part in zip(masters, self.gradients.parts, strict=True):
                master.grad = part
            inner.step()
            for master in masters:
                master.grad = None
            torch._foreach_copy_(self.weights.parts, [*masters])
        optimizer._lazy_init_hp_params_optimizer_state()
        self.weights.start()

    def _divisor(self, scale: float) -> Tensor | None:
        """The loss scale, times what the norm exceeds the largest allowed one: fp32 [], or None for one."""
        if largest := self._optimizer.clip_grad:
            return scale * ((self.norm / scale + 1e-6) / largest).clamp(min=1)
        return None if scale == 1 else torch.full_like(self.norm, scale)

    def close(self) -> None:
        """Leave the model and the process group."""
        self.gradients.close()
        self.weights.close()
        if self._ranks:
            dist.destroy_process_group(self._ranks)
