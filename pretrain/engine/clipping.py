"""Gradient norm and clipping for DeepSpeed's optimizer of ZeRO 2."""

from typing import Any

import torch
from torch import Tensor


class Clipping:
    """Gradient norm and clipping under ZeRO 2 that read nothing from the device. It replaces DeepSpeed's clipping.

    DeepSpeed asks the device in each step whether the norm is finite. Here the optimizer skips such a step
    (`found_inf`), but in fp16 DeepSpeed must know on the host whether to lower its loss scale.

    Args:
        optimizer: DeepSpeed's, of stage 2 without offloading.
        fp16: whether it scales the loss.
    """

    def __init__(self, optimizer: Any, fp16: bool):
        self._optimizer, self._fp16 = optimizer, fp16
        self._norm: Tensor | None = None
        optimizer.unscale_and_clip_grads = self._clip

    def measure(self) -> Tensor | None:
        """The norm of all gradients, for the step that follows: fp32 []; None in fp16, where that step computes it.

        A collective, after the backward pass, and after a checkpoint is loaded: DeepSpeed refuses to load one when it
        does not compute norms but clips.
        """
        if not self._fp16:
            self._optimizer.compute_grad_norm = False
            self._norm = self._optimizer.scaled_global_norm()
        return self._norm

    def _clip(self, gradients: list[Tensor], norm: Tensor | None) -> None:
        """Divide by the loss scale, and by what the norm exceeds the largest allowed one."""
        scale, largest = self._optimizer.loss_scale, self._optimizer.clip_grad
        norm = self._norm if norm is None else norm
        if largest:
            assert norm is not None  # otherwise gradients would not be clipped
            scale = scale * ((norm / scale + 1e-6) / largest).clamp(min=1)
        elif scale == 1:
            return
        torch._foreach_mul_(gradients, 1 / scale)
