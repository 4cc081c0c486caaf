"""Settings of objectives, and the table of all objectives; each is defined in a file of pretrain/objectives."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticKnownError

from pretrain.config.data import MaskingConfig
from pretrain.config.section import Section, SettingSchedule


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
    """An objective: what the config and the trained model need to know of it, and how its batches are made.

    Attributes:
        name: the value of the setting `objective`.
        title: the name in words.
        predicts: one line about the predicted tokens, as "what | which", given the masking.
        create: makes the pretrain.objectives.Objective from the masking, the Vocabulary, a seed and a purpose.
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
    create: Callable[..., Any]
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


class Objectives(Mapping[str, ObjectiveKind]):
    """The objectives by name. Each is defined in a file of pretrain/objectives, which the first lookup imports."""

    def __init__(self) -> None:
        self._kinds: dict[str, ObjectiveKind] = {}
        self._imported = False

    def add(self, kind: ObjectiveKind) -> None:
        """Make an objective known; the name must be new."""
        assert kind.name not in self._kinds, f"two objectives have the name {kind.name}"
        self._kinds[kind.name] = kind

    def __getitem__(self, name: str) -> ObjectiveKind:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, ObjectiveKind]:
        if not self._imported:  # not at the start of this module: the files import the config
            for module in iter_modules([str(Path(__file__).parents[1] / "objectives")]):
                import_module(f"pretrain.objectives.{module.name}")
            self._imported = True
        return self._kinds


OBJECTIVES = Objectives()


def _known(name: str) -> str:
    if name not in OBJECTIVES:
        *others, last = map(repr, OBJECTIVES)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
    return name


def _add_names(schema: dict[str, Any]) -> None:
    schema["enum"] = [*OBJECTIVES]


ObjectiveName = Annotated[str, AfterValidator(_known), Field(json_schema_extra=_add_names)]
_Share = Annotated[float, Field(ge=0, le=1)]


class ShareSchedule(SettingSchedule):
    start: _Share = Field(description="at the first step")
    end: _Share = Field(description="at the last step")


class ObjectiveConfig(Section):
    kind: ObjectiveName = Field(description="what these rows predict")
    share: Annotated[
        Annotated[_Share, Tag("<number>")] | Annotated[ShareSchedule, Tag("<schedule>")],
        Discriminator(lambda share: "<schedule>" if isinstance(share, dict | ShareSchedule) else "<number>"),
    ] = Field(description="share of the rows of each micro-batch, or {schedule, start, end}")
    weight: float | None = Field(None, gt=0, description="of this objective's mean loss in the sum; its share")

    @property
    def ends(self) -> tuple[float, float]:
        """The share at the first step, and at the last."""
        share = self.share
        return (share.start, share.end) if isinstance(share, ShareSchedule) else (share, share)

    def problems(self) -> Iterator[str]:
        if not any(self.ends):
            yield f"share of {self.kind} is 0; remove it from the list"


def check_objective_form(objective: Any) -> Any:
    """The value of the setting `objective`; raises ValueError for a section, or a list of anything else."""
    is_section = isinstance(objective, dict)
    if is_section or (isinstance(objective, list) and not all(isinstance(part, dict | Section) for part in objective)):
        raise ValueError(
            "it must be one name such as mlm, or a list of {kind, share}. Write for example "
            "[{kind: mlm, share: 0.5}, {kind: clm, share: 0.5}]."
        )
    return objective
