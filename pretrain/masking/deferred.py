"""Masks that are left to the device: the host adds what it alone knows (pretrain.masking.kernel does the rest)."""

import os
from typing import TYPE_CHECKING

import numpy as np

from data_prep.errors import UserError
from pretrain.masking.policy import MaskedTokens
from pretrain.masking.rows import Masked, Objective, Rows, ToMask
from pretrain.masking.selection import fixed

if TYPE_CHECKING:
    import torch

    from pretrain.masking.kernel import DeviceMasking


class DeferredMasks:
    """The objective `masked`, of which the host does no more than to cut rows into units."""

    def __init__(self, masked: MaskedTokens):
        self.masked = masked

    @property
    def marks(self) -> int:
        return self.masked.marks

    def slots(self, seq_len: int) -> int:
        return self.masked.slots(seq_len)

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """The tokens as they are, no predictions, and what it takes to mask them."""
        units = self.masked.units(rows, self.masked.vocabulary.is_ordinary[rows.tokens])
        nothing = np.zeros(0, dtype=np.int64)
        later = ToMask(None if units is None else units.bits, rows.places, fixed(rate))
        return Masked(rows.tokens.reshape(-1), nothing, nothing, later)


def device_masking(objective: Objective, device: "torch.device", longest_row: int) -> "DeviceMasking | None":
    """What masks on the device the rows that an objective leaves to it; None if it leaves none.

    Raises:
        UserError: if the device or the packages cannot do it.
    """
    if not isinstance(objective, DeferredMasks):
        return None
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("masking.device gpu needs a GPU; set it to cpu: the masks are the same")
    try:
        from pretrain.masking.kernel import LONGEST_ROW, DeviceMasking
    except ImportError:
        raise UserError("masking.device gpu needs the package triton; install it, or set it to cpu") from None
    if longest_row > LONGEST_ROW:
        raise UserError(
            f"masking.device gpu masks rows of up to {LONGEST_ROW:,} slots; set it to cpu: the masks are the same"
        )
    return DeviceMasking(objective.masked, device)
