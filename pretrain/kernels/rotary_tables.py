"""Rotary position embedding (Su et al., "RoFormer", 2021); pairs join the two halves of a head's dimensions."""

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]


def rotation(positions: Tensor, dimensions: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Cosines and sines of positions [N] for heads of `dimensions`: two tensors [N, 1, dimensions / 2]."""
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float32, device=positions.device) / dimensions
    angles = positions.float()[:, None, None] * theta**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate queries or keys [N, H, D/H] by their positions."""
    cos, sin = by
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
