"""A stand-in for FlashAttention 3 on a CPU: the operators that torch looks for, computed in plain torch.

Call `register` in a separate process. `python -m tests.support.flash_attention_3 FOLDER` uses version 2, 3, 3 and 2
for a model, with the modules of the folder, and prints each time what torch uses.
"""

import sys
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl

from pretrain.kernels import FastPath, operations, use_version
from pretrain.masking import IGNORED
from pretrain.model import Encoder, use_path
from tests.support import path_cases
from tests.support.streams import plain_varlen, shape_of, stream

INFERENCE = "This flash attention build does not support backward."
_FWD = "fwd(Tensor q) -> Tensor"
_BWD = (
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq=None, "
    "Tensor(b!)? dk=None, Tensor(c!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "float softcap=0.0, bool deterministic=False, int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_kept: list[torch.library.Library] = []


def register(backward: str = "computed") -> None:
    """Register the operators; `backward`: "computed", "raises" as in a build for inference, or "missing"."""
    own, of_torch = torch.library.Library("flash_attn_3", "DEF"), torch.library.Library("aten", "IMPL")
    own.define(_FWD)
    own.define(_BWD)
    if backward != "missing":
        own.impl("bwd", _backward if backward == "computed" else _raises, "CPU")
    of_torch.impl("_flash_attention_forward", _forward, "CPU")
    _kept.extend([own, of_torch])


def _raises(*_: Tensor, **__: object) -> None:
    raise RuntimeError(INFERENCE)


def _forward(q, k, v, *bounds, window_size_left=-1, window_size_right=-1, **_):
    out = plain_varlen(q, k, v, *bounds[:4], (window_size_left, window_size_right))
    return out, *(q.new_empty(0) for _ in range(4))


def _backward(of_out, q, k, v, out, _, of_q, of_k, of_v, *bounds_and_more):
    cu_q, cu_k, _, _, max_q, max_k, _, _, before, after = (*bounds_and_more, None, False, -1, -1)[:10]
    leaves = [part.detach().requires_grad_() for part in (q, k, v)]
    with torch.enable_grad():
        again = plain_varlen(*leaves, cu_q, cu_k, max_q, max_k, (before, after))
        gradients = torch.autograd.grad(again, leaves, of_out)
    for target, gradient in zip((of_q, of_k, of_v), gradients, strict=True):
        target.copy_(gradient)
    return of_q, of_k, of_v, out, out


def encoder_with_version_3(arch: str) -> tuple[dict[str, float], list[bool]]:
    """Errors of loss and gradients with the Triton kernels, against sdpa in fp64 and relative to the largest value.

    Also, for each layer from the last one: whether the gradients of its heads were parts of one matrix.
    """
    from pretrain.kernels import rotary  # imports Triton

    if not _kept:
        register()
    sys.modules["flash_attn_interface"] = sys.modules[__name__]
    use_version(3)
    merged, matrix_of = [], rotary._matrix_of

    def recorded(parts):
        merged.append((matrix := matrix_of(parts)) is not None)
        return matrix

    batch = stream([20, 12, 32, 7, 5, 1, 19, 32])
    places = torch.tensor([[25, 28, 0], [33, 37, 62], [67, 83, 95], [96, 96, 96]]).flatten()
    batch |= {"masked_positions": places, "labels": torch.arange(5, 17).where(places % 32 > 0, IGNORED)}
    results = []
    for dtype, backend, fused in ((torch.float32, "varlen", True), (torch.float64, "sdpa", False)):
        model = Encoder(shape_of(arch, layers=4), 0.0, backend, operations(fused))
        model.initialize(1)
        with patch.object(rotary, "_matrix_of", recorded):
            loss = model.to(dtype)(**batch, seq_len=32).loss
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        results.append({"loss": loss.detach()} | dict(zip(names, gradients, strict=True)))
    (found, exact), most = results, {name: tensor.abs().max() for name, tensor in results[1].items()}
    return {name: float((found[name] - exact[name]).abs().max() / most[name]) for name in exact if most[name]}, merged


def main(folder: str) -> None:
    """See the module's docstring."""
    sys.path.insert(0, folder)
    model, config = path_cases.encoder("bert", "fp32"), path_cases.config("fp32")
    for version in (2, 3, 3, 2):
        try:
            use_path(model, config, FastPath(False, False, version))
        finally:
            print(current_flash_attention_impl())


if __name__ == "__main__":
    main(sys.argv[1])
