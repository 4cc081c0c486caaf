"""What a model gives back for a stream."""

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
