"""Triton implementation of the operations of pretrain.kernels.plain."""

from pretrain.kernels.activation import geglu, linear_gelu
from pretrain.kernels.adamw import adamw
from pretrain.kernels.cross_entropy import cross_entropy
from pretrain.kernels.norm import add_norm, embed_norm
from pretrain.kernels.plain import Operations
from pretrain.kernels.rotary import rotate_heads
from pretrain.kernels.window_attention import window_attention

FUSED = Operations(embed_norm, add_norm, linear_gelu, geglu, rotate_heads, cross_entropy, True, window_attention, adamw)
