"""Choice of the device that masks: the loader's host, or the training device."""

import os
from typing import TYPE_CHECKING

import torch

from data_prep.errors import UserError
from pretrain.masking.masked_tokens import DeferredMasks

if TYPE_CHECKING:
    from pretrain.masking.gpu_masking import DeviceMasking


def device_masking(objective: object, device: torch.device, longest_row: int) -> "DeviceMasking | None":
    """The masking on a device, of an objective that defers it; None for others.

    Args:
        longest_row: slots of the longest row.

    Raises:
        UserError: if the device cannot mask: there is no GPU, no Triton, or a row is too long.
    """
    if not isinstance(objective, DeferredMasks):
        return None
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("masking.device gpu needs a GPU; set it to cpu: the masks are the same")
    try:
        from pretrain.masking.gpu_masking import DeviceMasking, row_limit
    except ImportError:
        raise UserError("masking.device gpu needs the package triton; install it, or set it to cpu") from None
    if longest_row > row_limit():
        raise UserError(
            f"masking.device gpu masks rows of up to {row_limit():,} slots; set it to cpu: the masks are the same"
        )
    return DeviceMasking(objective, device)
