"""Output types of a model: sums for training, or the likeliest tokens for readers."""

from typing import NamedTuple

from torch import Tensor


class Prediction(NamedTuple):
    """Sums over the predictions of one stream, fp32 scalars.

    loss: what is minimised. cross_entropy: in nats, the same unless options add to it. correct: arg-max choices that
    are right. predictions: how many there are.

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
