"""The choice between plain torch and Triton for the operations of a model."""

import os

import torch

from data_prep.common.errors import UserError
from pretrain.kernels.plain import PLAIN, Operations


def operations(fused: bool) -> Operations:
    """The kernels if `fused`, else PLAIN.

    Raises UserError if there is no GPU, or no Triton.
    """
    if not fused:
        return PLAIN
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("train.fused_kernels needs a GPU; set it to false")
    try:
        from pretrain.kernels.fused import FUSED
    except ImportError:
        raise UserError("train.fused_kernels needs the package triton; install it, or set it to false") from None
    return FUSED
