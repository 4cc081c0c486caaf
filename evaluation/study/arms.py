"""Arms of a masking study: strategies x rates x replacements, each as a complete `masking:` section."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import StringConstraints, ValidationError

from data_prep.errors import UserError
from pretrain.config import MaskingConfig
from pretrain.config.error_text import percent, value_refusal

_OF_A_STRATEGY = {"span": "span", "ngram": "ngram", "collocations": "collocation"}
"""Keys of section `masking` that apply to one strategy only."""
_USUAL = "80/10/10"


@dataclass(frozen=True)
class Arm:
    """A masking method. name: also used in folder names. masking: the config section as JSON values."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-zA-Z0-9_.+-]{0,199}$")]
    masking: dict[str, Any]


def grid(
    strategies: Sequence[str], rates: Sequence[str], replacements: Sequence[str], masking: MaskingConfig
) -> list[Arm]:
    """All combinations, strategies in the outer loop. All other settings come from `masking`.

    Args:
        strategies: values of masking.strategy.
        rates: `0.15`, or `0.3:0.15` for a linear decay over the run.
        replacements: `80/10/10`: percent [MASK], random token, unchanged.

    Raises:
        UserError: for an invalid or repeated value.
    """
    for name, given in (("strategies", strategies), ("rates", rates), ("replacements", replacements)):
        if len(set(given)) != len(given):
            raise UserError(f"--{name} {' '.join(given)}: give each once")
    arms = [_arm(*choice, masking) for choice in itertools.product(strategies, rates, replacements)]
    if len({arm.name for arm in arms}) != len(arms):
        raise UserError("two arms of the study are the same: give each rate and replacement in one form alone")
    return arms


def _arm(strategy: str, rate: str, replacement: str, masking: MaskingConfig) -> Arm:
    rate_name, rate_value = _rate(rate)
    shares = _replacement(replacement)
    section = masking.model_dump(mode="json")
    for key, owner in _OF_A_STRATEGY.items():
        if strategy != owner:
            del section[key]
    section |= {"strategy": strategy, "rate": rate_value}
    section["replacement"] |= shares
    suffix = "" if replacement == _USUAL else "-" + replacement.replace("/", "-")
    try:
        checked = MaskingConfig.model_validate(section)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(["masking", *(str(part) for part in problem["loc"] if part != "<name>")])
        reason = value_refusal(key, problem)
        raise UserError(f"{strategy} at rate {rate}, {replacement}: {reason}") from None
    return Arm(f"{strategy}-{rate_name}{suffix}", checked.model_dump(mode="json"))


def _rate(text: str) -> tuple[str, float | dict[str, Any]]:
    """Name of the rate for the arm, and the value of masking.rate."""
    try:
        numbers = [float(part) for part in text.split(":")]
        if not all(0 < number < 1 for number in numbers) or len(numbers) > 2:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--rates {text!r} is not a number between 0 and 1, or two such as 0.3:0.15, for the first and the last "
            f"step. {percent(text.removesuffix('%')) or 'Correct it.'}"
        ) from None
    name = "to".join(f"{number:g}" for number in numbers)
    if len(numbers) == 1:
        return name, numbers[0]
    return name, {"schedule": "linear", "start": numbers[0], "end": numbers[1]}


def _replacement(text: str) -> dict[str, float]:
    match = re.fullmatch(r"(0|[1-9]\d*)/(0|[1-9]\d*)/(0|[1-9]\d*)", text, re.ASCII)
    if not match or sum(map(int, match.groups())) != 100:
        raise UserError(
            f"--replacements {text!r}: write three whole percentages that add up to 100, such as 80/10/10, for what "
            "becomes [MASK], becomes another token, and stays unchanged"
        )
    return {"mask": int(match[1]) / 100, "random": int(match[2]) / 100}
