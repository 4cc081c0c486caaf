"""Settings of objectives, and what follows from the name of one alone: what a position sees, what is predicted.

The rest of an objective, its draws and labels, is in pretrain/objectives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from pretrain.config.data import MaskingConfig
from pretrain.config.section import Section

ObjectiveName = Literal["mlm", "clm", "mntp", "repair", "diffusion", "prefix"]
Share = Annotated[float, Field(ge=0, le=1)]
_FINEST = 1024  # the largest denominator of a constant share


class ShareSchedule(Section):
    schedule: Literal["linear", "cosine"] = Field(description="how the value changes over the steps")
    start: Share = Field(description="at the first step")
    end: Share = Field(description="at the last step")


class ObjectiveConfig(Section):
    kind: ObjectiveName = Field(description="what these rows predict")
    share: Annotated[
        Annotated[Share, Tag("<number>")] | Annotated[ShareSchedule, Tag("<schedule>")],
        Discriminator(lambda share: "<schedule>" if isinstance(share, dict | ShareSchedule) else "<number>"),
    ] = Field(description="share of the rows of each micro-batch, or {schedule, start, end}")
    weight: float | None = Field(None, gt=0, description="of this objective's mean loss in the sum; its share")

    @property
    def ends(self) -> tuple[float, float]:
        """The share at the first step, and at the last."""
        share = self.share
        return (share.start, share.end) if isinstance(share, ShareSchedule) else (share, share)

    @model_validator(mode="after")
    def _takes_part(self) -> "ObjectiveConfig":
        if not any(self.ends):
            raise ValueError(f"share of {self.kind} is 0; remove it from the list")
        return self


def check_objective_form(objective: Any) -> Any:
    """The value of the setting `objective`; raises ValueError for a section, or a list of anything else."""
    is_section = isinstance(objective, dict)
    if is_section or (isinstance(objective, list) and not all(isinstance(one, dict | Section) for one in objective)):
        raise ValueError(
            "it must be one name such as mlm, or a list of {kind, share}. Write for example "
            "[{kind: mlm, share: 0.5}, {kind: clm, share: 0.5}]."
        )
    return objective


def block_rows(objectives: tuple[ObjectiveConfig, ...]) -> int:
    """The fewest rows that give each constant share whole rows; 1 for shares that change, which are rounded."""
    shares = [one.share for one in objectives if not isinstance(one.share, ShareSchedule)]
    return math.lcm(*(Fraction(share).limit_denominator(_FINEST).denominator for share in shares))


class View(Enum):
    """The positions that a position attends to, within its document: all, or itself and those before it.

    PREFIX: all of the source in it; all of the source and itself and targets before it in the target after the first
    [SEP].
    """

    BIDIRECTIONAL = "bidirectional"
    CAUSAL = "causal"
    PREFIX = "prefix"

    @property
    def forward(self) -> bool:
        """Whether positions that predict see none after them, so that no token that they predict needs a mask."""
        return self is not View.BIDIRECTIONAL


@dataclass(frozen=True)
class ObjectiveKind:
    """An objective, as far as the config and the trained model need it.

    Attributes:
        name: the value of the setting `objective`.
        title: the name in words.
        predicts: one line about the predicted tokens, as "what | which", given the masking.
        view: see View.
        lag: slots from the state that predicts to the token that it predicts.
        pipeline: the task of the trained model, as transformers names its pipelines.
        unread: settings of `masking` that it does not read.
        draws_masks: whether masking.strategy and masking.rate choose the predicted tokens.
        needs_targets: whether the data mark the predicted tokens.
        needs_pairs: whether the documents hold a source and a target.
    """

    name: str
    title: str
    predicts: Callable[[MaskingConfig], str]
    view: View = View.BIDIRECTIONAL
    lag: int = 0
    pipeline: str = "fill-mask"
    unread: tuple[str, ...] = ()
    draws_masks: bool = False
    needs_targets: bool = False
    needs_pairs: bool = False

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


def _modes(masking: MaskingConfig) -> str:
    return " and ".join(f"{mode.mean:.0%} ± {mode.std:.0%}" for mode in masking.diffusion.modes) or "uniform"


OBJECTIVES = {
    kind.name: kind
    for kind in (
        ObjectiveKind(
            name="mlm",
            title="masked language modelling",
            unread=("diffusion",),
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
            unread=("strategy", "rate", "replacement", "selection", "diffusion"),
            predicts=lambda masking: "predicted | every token but special ones, from those before it",
        ),
        ObjectiveKind(
            name="mntp",
            title="masked next-token prediction",
            lag=1,
            pipeline="feature-extraction",  # transformers' fill-mask reads the state of the mask itself
            unread=("diffusion",),
            draws_masks=True,
            predicts=lambda masking: (
                f"masking | {masking.strategy}, {_rate(masking)} of tokens, each predicted from the slot before it"
            ),
        ),
        ObjectiveKind(
            name="prefix",
            title="translation (prefix language modelling)",
            view=View.PREFIX,
            lag=1,
            pipeline="feature-extraction",
            unread=("strategy", "rate", "replacement", "selection", "diffusion"),
            needs_pairs=True,
            predicts=lambda masking: "predicted | the target, from its source and the tokens before",
        ),
        ObjectiveKind(
            name="repair",
            title="cloze repair",
            unread=("strategy", "replacement", "selection", "diffusion"),
            needs_targets=True,
            predicts=lambda masking: (
                f"masking | what the wrong text has not (cloze repair), at most {_rate(masking)} of tokens"
            ),
        ),
        ObjectiveKind(
            name="diffusion",
            title="masked diffusion",
            unread=("strategy", "rate", "replacement", "selection"),
            predicts=lambda masking: f"masking | token, {_modes(masking)} rates drawn for each row, all as [MASK]",
        ),
    )
}
