"""Layer operations between matrix products: norms, activations, rotary positions, embeddings and cross-entropy.

`operations` chooses the implementation once, when a model is built. PLAIN uses plain torch, runs anywhere and is the
reference of the kernels. The Triton kernels run on a GPU, or on a CPU under TRITON_INTERPRET=1.
"""

import os

import torch

from data_prep.common.errors import UserError
from pretrain.kernels.plain import PLAIN, Operations, Rotation, add_rms_norm, rotation, swiglu

__all__ = ["PLAIN", "Operations", "Rotation", "add_rms_norm", "operations", "rotation", "swiglu"]


def operations(fused: bool) -> Operations:
    """The kernels if `fused`, else PLAIN.

    Raises:
        UserError: if there is no GPU, or no Triton.
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
