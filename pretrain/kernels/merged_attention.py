"""Flash attention over documents. Version 3 writes the gradients of query, key and value into one matrix.

torch's `varlen_attn` makes three matrices of them, which must then be copied. pretrain.kernels.rotary takes the one
matrix unchanged.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import current_flash_attention_impl
from torch.nn.attention.varlen import varlen_attn


def varlen_attention(*arguments: Any, window_size: tuple[int, int]) -> Tensor:
    """As torch's `varlen_attn`: attention of q [K, H, E] and k, v [N, H, E] within documents, [K, H, E]."""
    if current_flash_attention_impl() == "FA3" and not torch.compiler.is_compiling():
        out: Tensor = _MergedAttention.apply(*arguments, window_size)
        return out
    return varlen_attn(*arguments, window_size=window_size)  # type: ignore[return-value]


def compute_one_gradient() -> None:
    """Compute the gradient of attention of one token, as builds without a backward pass cannot.

    Raises:
        RuntimeError: by torch or the package, if it has none.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device=device, requires_grad=True)
    bounds = torch.tensor([0, 1], dtype=torch.int32, device=device)
    varlen_attention(x, x, x, bounds, bounds, 1, 1, window_size=(-1, -1)).sum().backward()


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *given, (left, right) = arguments
        q, k, v, *bounds, max_q, max_k = given
        causal, window = (left, right) == (-1, 0), {"window_size_left": left, "window_size_right": right}
        out, log_sums, *_ = torch.ops.aten._flash_attention_forward(*given, 0.0, causal, False, **window)
        ctx.save_for_backward(q, k, v, out, log_sums, *bounds)
        ctx.options = {"max_seqlen_q": max_q, "max_seqlen_k": max_k, "is_causal": causal, **window}
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, cu_seqlens_q, cu_seqlens_k = ctx.saved_tensors
        q, k, *_ = inputs
        matrices = ((q, 3),) if len(q) == len(k) else ((q, 1), (k, 2))  # a last layer may have fewer queries
        gradients = [part for x, n in matrices for part in x.new_empty(len(x), n, *x.shape[1:]).unbind(1)]
        torch.ops.flash_attn_3.bwd(
            of_out.contiguous(),
            *inputs,
            *gradients,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            **ctx.options,
        )
        return *gradients, *(None,) * 5
