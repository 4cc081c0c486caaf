"""Masked language modelling, and the same with each token predicted from the slot before it."""

from functools import partial

from pretrain.config import OBJECTIVES, ObjectiveKind
from pretrain.masking import MaskedTokens

OBJECTIVES.add(
    ObjectiveKind(
        name="mlm",
        title="masked language modelling",
        predicts=lambda masking: (
            f"masking | {masking.strategy}, {masking.rate_text} of tokens, drawn again at each visit"
        ),
        create=MaskedTokens,
        unread=("diffusion",),
        draws_masks=True,
    )
)
OBJECTIVES.add(
    ObjectiveKind(
        name="mntp",
        title="masked next-token prediction",
        predicts=lambda masking: (
            f"masking | {masking.strategy}, {masking.rate_text} of tokens, each predicted from the slot before it"
        ),
        create=partial(MaskedTokens, lag=1),
        lag=1,
        pipeline="feature-extraction",  # transformers' fill-mask reads the state of the mask itself
        unread=("diffusion",),
        draws_masks=True,
    )
)
