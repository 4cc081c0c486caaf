"""Base classes of the config sections."""

import typing
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError


def _is_number(annotation: Any) -> bool:
    kinds = set(typing.get_args(annotation) or (annotation,))
    return bool(kinds & {int, float}) and bool not in kinds


class Section(BaseModel):
    """Immutable; unknown keys, infinities, and yes or no for a number are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)
    takes_text: ClassVar[bool] = False  # whether a text may replace a whole section
    of_whole: ClassVar[tuple[str, ...]] = ()  # keys whose values are of the kind that they have in the whole config

    def problems(self) -> Iterator[str]:
        """Sentences on keys that do not go together, for values that are valid by themselves."""
        return iter(())

    @model_validator(mode="after")
    def _go_together(self) -> "Section":
        if problem := next(self.problems(), None):
            raise ValueError(problem)
        return self

    def unread_problems(self, *names: str, why: str, section: str = "") -> Iterator[str]:
        """A problem for each of these keys that is set, which nothing would read.

        Args:
            why: continues the key's name. section: stands before it, with a dot.
        """
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                yield f"{section}{name} {why}; remove it"

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name and _is_number(cls.model_fields[info.field_name].annotation):
            raise PydanticCustomError("bool_as_number", "it must be a number")
        return value


class SettingSchedule(Section):
    """A setting that changes over the steps."""

    schedule: Literal["linear", "cosine"] = Field(description="how the value changes over the steps")
    start: float
    end: float
