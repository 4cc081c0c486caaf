"""Layer operations in plain torch, with the documentation of each operation.

Shapes: N slots, D hidden, I width of an MLP, H heads of E dimensions (G of keys), K rows of V logits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from pretrain.kernels.tiles import Tiles
from pretrain.masking import IGNORED

_BLOCK_BYTES = 1 << 21  # on a CPU, softmax runs over blocks of rows that stay in its cache
Rotation = tuple[Tensor, Tensor]


def rotation(positions: Tensor, dimensions: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Cosines and sines of positions [N] for heads of `dimensions`: two tensors [N, 1, dimensions / 2].

    Su et al., "RoFormer", 2021. Pairs join the two halves of a head's dimensions.
    """
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float32, device=positions.device) / dimensions
    angles = positions.float()[:, None, None] * theta**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate queries or keys [N, H, D/H] by their positions."""
    cos, sin = by
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def add_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, x_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm (Ba et al., 2016) of x + residual, [N, D], or of x alone. Returns (norm, the same norm, sum).

    Give each of two users of the norm its own. Their gradients then reach the kernel separately, and it adds them, and
    the sum's, in the same pass. With a residual, `x_bias` [D] is added too: the bias of the linear layer that gives x.
    The kernel also makes its gradient in that pass.
    """
    x = x if x_bias is None else x + x_bias
    total = x if residual is None else x + residual
    normed = F.layer_norm(total, weight.shape, weight, bias, eps)
    return normed, normed, total


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm (Zhang & Sennrich, 2019) of x + residual, or of x alone; returns as add_norm. There is no kernel."""
    total = x if residual is None else x + residual
    normed = F.rms_norm(total, weight.shape, weight, eps)
    return normed, normed, total


def embed_norm(
    tokens: Tensor,
    words: Tensor,
    positions: Tensor | None,
    table: Tensor | None,
    kind: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """LayerNorm of embeddings: rows of words [V, D] by tokens [N], plus rows of table [P, D] by positions [N], plus
    kind [D]. The last three go together: all or none. Returns the norm twice, see add_norm.
    """
    total = F.embedding(tokens, words)
    if positions is not None and table is not None and kind is not None:
        total = total + F.embedding(positions, table) + kind
    normed = F.layer_norm(total, weight.shape, weight, bias, eps)
    return normed, normed


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The exact GELU (Hendrycks & Gimpel, 2016) of a linear layer: x [N, D], weight [I, D], bias [I] to [N, I]."""
    return F.gelu(F.linear(x, weight, bias))


def geglu(halves: Tensor) -> Tensor:
    """GELU, exact, of the first half of [N, 2I], times the second half (Shazeer, 2020): [N, I].

    The kernel overwrites `halves` with their gradient, so only one backward pass is possible.
    """
    value, gate = halves.chunk(2, dim=-1)
    return F.gelu(value) * gate


def swiglu(halves: Tensor) -> Tensor:
    """SiLU of the first half of [N, 2I], times the second half (Shazeer, 2020): [N, I]. There is no kernel."""
    value, gate = halves.chunk(2, dim=-1)
    return F.silu(value) * gate


def rotate_heads(matrix: Tensor, parts: tuple[int, ...], rotated: int, by: Rotation | None) -> tuple[Tensor, ...]:
    """The parts of a matrix [N, sum(parts) * E], with so many heads each: [N, H, E], [N, G, E] and so on.

    The first `rotated` parts, query and key, are rotated by their positions. The kernel rotates them in place: do not
    use `matrix` afterwards. In its backward pass, gradients that are parts of one matrix need no copy.
    """
    split = matrix.unflatten(1, (sum(parts), -1)).split(parts, dim=1)
    return tuple(rotate(part, by) if by and number < rotated else part for number, part in enumerate(split))


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None, z_loss: float, learns: bool
) -> tuple[Tensor, Tensor | None]:
    """The values of pretrain.model.head.VocabularyLoss for each row of logits [K, V]: fp32 [K, 3].

    If `learns`, `logits` are replaced by the gradient of the first values, and its column sums are returned too:
    fp32 [V]. Rows with the label IGNORED become zero. `weights` [K] fp32 multiply the first two values of a row.
    """
    values = torch.empty(len(logits), 3, dtype=torch.float32, device=logits.device)
    rows = max(1, _BLOCK_BYTES // (4 * logits.shape[1]) if logits.device.type == "cpu" else len(logits))
    for first in range(0, len(logits), rows):
        part = slice(first, first + rows)
        of_rows = None if weights is None else weights[part, None]
        values[part] = _cross_entropy(logits[part], labels[part], of_rows, z_loss, learns)
    return values, logits.sum(0, dtype=torch.float32) if learns else None


def _cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None, z_loss: float, learns: bool) -> Tensor:
    used = (labels != IGNORED).unsqueeze(1)
    label = labels.clamp(min=0).unsqueeze(1)
    values = logits.float()
    largest, choice = values.max(dim=1, keepdim=True)
    of_label = values.gather(1, label)
    exponentials = (values - largest).exp_()
    total = exponentials.sum(dim=1, keepdim=True)
    log_total = largest + total.log()
    plain = log_total - of_label
    loss = plain + z_loss * log_total.square()
    counts = used if weights is None else used * weights
    results = torch.cat([loss * counts, plain * counts, (choice == label).float() * used], dim=1)
    if learns:
        exponentials.mul_((1 + 2 * z_loss * log_total) / total)
        exponentials.scatter_add_(1, label, torch.full_like(of_label, -1.0))
        logits.copy_(exponentials.mul_(counts))
    return results


def adamw(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
    copies: Sequence[Tensor],
    settings: Mapping[str, Any],
    divisor: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """A step of AdamW (Loshchilov and Hutter, 2019), in fp32.

    Args:
        weights: fp32, one tensor for each of the gradients.
        gradients: of any precision; their values are undefined afterwards.
        states: as in torch.optim.AdamW: moments `exp_avg` and `exp_avg_sq`, and the count `step`, which grows by 1.
        copies: of the model's precision; they get the new weights.
        settings: as in a group of torch.optim.AdamW: `lr`, `betas`, `eps` and `weight_decay`.
        divisor: of the gradients, fp32 [].
        found_inf: fp32 []; if 1, nothing changes.
    """
    averages, squares, counts = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
    torch_adamw(
        list(weights),
        [gradient.to(weight.dtype) for gradient, weight in zip(gradients, weights, strict=True)],
        averages,
        squares,
        [],
        counts,
        fused=True,
        grad_scale=divisor,
        found_inf=found_inf,
        amsgrad=False,
        beta1=settings["betas"][0],
        beta2=settings["betas"][1],
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        eps=settings["eps"],
        maximize=False,
    )
    if copies:
        torch._foreach_copy_(list(copies), list(weights))


def adamw_difference(kernel: Callable[..., None], dtype: torch.dtype, device: torch.device | str) -> float:
    """How far a step of a kernel is from `adamw`: the largest difference of values between -2 and 2; or NaN.

    Gradients are of `dtype`, as with one rank, and fp32, as summed over ranks. Rounding of copies does not count.

    dtype: of the model.
    """
    line, divisor = torch.linspace(-1, 1, 100, device=device), torch.tensor(1.5, device=device)
    settings = {"lr": 0.5, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.1}

    def result(step: Callable[..., None], gradient: Tensor) -> tuple[Tensor, Tensor]:
        weight, copy = line.cos(), torch.empty_like(line, dtype=dtype)
        state = {"step": torch.zeros_like(divisor), "exp_avg": line.sin(), "exp_avg_sq": line.square()}
        step([weight], [gradient], [state], [copy], settings, divisor, torch.zeros_like(divisor))
        return torch.stack([weight, state["exp_avg"], state["exp_avg_sq"]]), copy

    differences = []
    for of_gradient in (dtype, torch.float32):
        (values, copies), (wanted, _) = (result(step, line.to(of_gradient, copy=True)) for step in (kernel, adamw))
        of_copies = (copies.float() - values[0]).abs().max() - torch.finfo(dtype).eps
        differences += [(values - wanted).abs().max(), of_copies]
    return float(torch.stack(differences).max())


class Operations(NamedTuple):
    """One implementation of all operations; see the functions of this module.

    fused: whether these are kernels. add_norm then gets the bias of the linear layer before it, which plain torch adds
        in the matrix product, and cross_entropy makes no copies of the logits.
    window_attention: the kernel for layers with a window; None: `rotate_heads` and pretrain.model.attention compute it.
    adamw: the kernel of the optimizer; None: gradients are converted to fp32 when they arrive.
    """

    embed_norm: Callable[..., tuple[Tensor, Tensor]]
    add_norm: Callable[..., tuple[Tensor, Tensor, Tensor]]
    linear_gelu: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    geglu: Callable[[Tensor], Tensor]
    rotate_heads: Callable[[Tensor, tuple[int, ...], int, Rotation | None], tuple[Tensor, ...]]
    cross_entropy: Callable[..., tuple[Tensor, Tensor | None]]
    fused: bool = False
    window_attention: Callable[[Tensor, int, Rotation, Tiles, int], Tensor] | None = None
    adamw: Callable[..., None] | None = None


PLAIN = Operations(embed_norm, add_norm, linear_gelu, geglu, rotate_heads, cross_entropy)
