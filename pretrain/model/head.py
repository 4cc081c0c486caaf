"""The vocabulary projection and its cross-entropy, with gradients made in place in the forward pass.

Shapes: K rows, D hidden, V ids; those at the end may be padding, which no row can choose.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.kernels import PLAIN, Operations
from pretrain.masking import IGNORED


class Prediction(NamedTuple):
    """Sums over the predictions of one stream, fp32: the loss [], the others [] or for each group of rows [G].

    loss: what is minimised. cross_entropy: in nats, the same without train.z_loss; weighted in the same way.
    correct: arg-max choices that are right. predictions: how many there are.

    A tuple, not a dataclass: ZeRO-3 gathers parameters again for the backward pass through hooks on output tensors,
    and it finds those in tuples alone.
    """

    loss: Tensor
    cross_entropy: Tensor
    correct: Tensor
    predictions: Tensor


class Choices(NamedTuple):
    """The likeliest tokens at each of K places.

    ids [K, T] int64: the likeliest ones, in order. probabilities [K, T] fp32: theirs.
    of_label [K] fp32: the probability of the right one; without meaning where a place is not used.
    """

    ids: Tensor
    probabilities: Tensor
    of_label: Tensor


def choices_of(logits: Tensor, labels: Tensor, top: int) -> Choices:
    """The `top` likeliest ids by logits [K, V]; labels [K] int64, negative where a place is not used."""
    probabilities = logits.float().softmax(dim=1)
    likeliest = probabilities.topk(min(top, logits.shape[1]), dim=1)
    of_label = probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return Choices(likeliest.indices, likeliest.values, of_label)


def by_group(values: Tensor, places: tuple[int, ...]) -> Tensor:
    """Sums of values [K] of predictions: [], or [G] for groups with so many places each."""
    return torch.stack([group.sum() for group in values.split(places)]) if places else values.sum()


def cross_entropy_sums(
    logits: Tensor, labels: Tensor, z_loss: float = 0.0, weights: Tensor | None = None, places: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """The values of VocabularyLoss for given logits [K, V]; V is the vocabulary without padding."""
    values, used = logits.float(), labels != IGNORED
    plain = F.cross_entropy(values, labels, ignore_index=IGNORED, reduction="none")
    loss = plain + z_loss * (values.logsumexp(dim=1).square() * used)
    if weights is not None:
        plain, loss = plain * weights, loss * weights
    correct = ((values.argmax(dim=1) == labels) & used).float()
    return loss.sum(), by_group(plain.detach(), places), by_group(correct, places)


class VocabularyLoss(torch.autograd.Function):
    """Sums of the losses of a linear layer over the vocabulary.

    apply(x [K, D], weight [V, D], bias [V], labels [K] int64, z_loss, operations, weights, places, most_bytes)
    gives fp32 sums: the loss to minimise [], the cross-entropy in nats, and how many arg-max choices are right; these
    two [], or [G] for groups with `places` rows each. Only the first has a gradient. Rows with the label IGNORED give
    nothing. `weights` [K] fp32 multiply loss and cross-entropy of each row.

    The loss is the cross-entropy and z_loss * log(Z)**2 of each row, Z being the sum of its exponentials (Chowdhery et
    al., "PaLM", 2022).

    There is one copy of the K x V logits; the gradient replaces it in place. If it has more than `most_bytes`, further
    rows are computed in later parts.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        z_loss: float = 0.0,
        operations: Operations = PLAIN,
        weights: Tensor | None = None,
        places: tuple[int, ...] = (),
        most_bytes: int = 1 << 30,
    ) -> tuple[Tensor, Tensor, Tensor]:
        learns = any(ctx.needs_input_grad)
        values = torch.empty(len(x), 3, dtype=torch.float32, device=x.device)
        grad_x, grad_weight, grad_bias = torch.empty_like(x), None, None
        rows = max(1, most_bytes // (weight.shape[0] * x.element_size()))
        for first in range(0, len(x), rows):
            part = slice(first, first + rows)
            logits = torch.addmm(bias, x[part], weight.t())
            of_rows = None if weights is None else weights[part]
            values[part], of_bias = operations.cross_entropy(logits, labels[part], of_rows, z_loss, learns)
            if of_bias is not None:
                torch.mm(logits, weight, out=grad_x[part])
                if grad_weight is None or grad_bias is None:
                    grad_weight, grad_bias = logits.t() @ x[part], of_bias
                else:
                    grad_weight.addmm_(logits.t(), x[part])
                    grad_bias.add_(of_bias)
        if learns:
            ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        plain, correct = by_group(values[:, 1], places), by_group(values[:, 2], places)
        ctx.mark_non_differentiable(plain, correct)
        return values[:, 0].sum(), plain, correct

    @staticmethod
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight, grad_bias = ctx.saved_tensors
        scaled = (grad_x * scale, grad_weight * scale, (grad_bias * scale).to(grad_weight.dtype))
        return *(gradient.to(grad_x.dtype) for gradient in scaled), *[None] * 6
