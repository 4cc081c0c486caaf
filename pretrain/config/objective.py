"""What follows from the name of an objective alone: what a position sees, what is predicted, what the model is for.

The rest of an objective, its draws and labels, is in pretrain/objectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pretrain.config.data import MaskingConfig


class View(Enum):
    """The positions that a position attends to, within its document: all, or itself and those before it."""

    BIDIRECTIONAL = "bidirectional"
    CAUSAL = "causal"


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective, as far as the config and the trained model need it.

    Attributes:
        name: the value of the setting `objective`.
        title: the name in words.
        view: see View.
        lag: slots from the state that predicts to the token that it predicts.
        pipeline: the task of the trained model, as transformers names its pipelines.
        predicts: one line about the predicted tokens, as "what | which", given the masking.
        unread: settings of `masking` that it does not read.
        draws_masks: whether masking.strategy and masking.rate choose the predicted tokens.
        needs_targets: whether the data mark the predicted tokens.
    """

    name: str
    title: str
    view: View
    lag: int
    pipeline: str
    predicts: Callable[[MaskingConfig], str]
    unread: tuple[str, ...] = ()
    draws_masks: bool = False
    needs_targets: bool = False

    @property
    def causal(self) -> bool:
        """Whether a position sees only what precedes it."""
        return self.view is View.CAUSAL

    @property
    def fills_masks(self) -> bool:
        """Whether the trained model replaces mask tokens."""
        return self.pipeline == "fill-mask"


def _rate(masking: MaskingConfig) -> str:
    if isinstance(masking.rate, float):
        return f"{masking.rate:.0%}"
    return f"{masking.rate.start:.0%} to {masking.rate.end:.0%} ({masking.rate.schedule})"


OBJECTIVES = {
    kind.name: kind
    for kind in (
        ObjectiveKind(
            name="mlm",
            title="masked language modelling",
            view=View.BIDIRECTIONAL,
            lag=0,
            pipeline="fill-mask",
            draws_masks=True,
            predicts=lambda masking: (
                f"masking | {masking.strategy}, {_rate(masking)} of tokens, drawn again at each visit"
            ),
        ),
        ObjectiveKind(
            name="clm",
            title="causal language modelling",
            view=View.CAUSAL,
            lag=1,
            pipeline="text-generation",
            unread=("strategy", "rate", "replacement"),
            predicts=lambda masking: "predicted | every token but special ones, from those before it",
        ),
        ObjectiveKind(
            name="repair",
            title="cloze repair",
            view=View.BIDIRECTIONAL,
            lag=0,
            pipeline="fill-mask",
            unread=("strategy", "replacement"),
            needs_targets=True,
            predicts=lambda masking: (
                f"masking | what the wrong text has not (cloze repair), at most {_rate(masking)} of tokens"
            ),
        ),
    )
}
