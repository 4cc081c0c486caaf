"""The base class of filters of text, and the built-in filters by name."""

import importlib
import pkgutil
from collections.abc import Sequence
from typing import ClassVar


class TextFilter:
    """A rule that leaves documents out, chosen by `--filter NAME` or `--filter NAME=VALUE`.

    A subclass in a file of data_prep/cleaning/filters/ is all that a new filter needs: the option, its help, the check
    of its value, the plan of a preparation and the counts by reason follow from it.

    Attributes:
        name: of the filter, in options and plans.
        value: describes the value, as MIN-MAX; empty for a filter without a value.
        reasons: why it leaves documents out, as the counts name them.
        order: filters with lower numbers come first. A document counts under the first reason.
        version: of code from outside, which the plan records.
    """

    name: str
    value: ClassVar[str] = ""
    reasons: ClassVar[tuple[str, ...]]
    order: ClassVar[int]
    version: str = ""

    def __init__(self, value: str) -> None:
        """Raises ValueError for an unusable value, which says what to give."""
        if value:
            raise ValueError("it takes no value; leave it out")

    def keep(self, texts: list[str]) -> Sequence[str | None]:
        """The reason for leaving out each of the normalized texts, or None to keep it.

        A reason depends on its text alone. To change a text, assign the new one to its place in `texts`.
        """
        raise NotImplementedError


def known_filters() -> dict[str, type[TextFilter]]:
    """All built-in filters by name, in the order of their application. Raises ValueError if two have one name."""
    folder = importlib.import_module("data_prep.cleaning.filters")
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    kinds = [kind for kind in TextFilter.__subclasses__() if kind.__module__.startswith(folder.__name__)]
    kinds.sort(key=lambda kind: (kind.order, kind.name))
    known = {kind.name: kind for kind in kinds}
    if len(known) < len(kinds):
        raise ValueError(f"two filters have one name: {[kind.name for kind in kinds]}")
    return known


def filter_forms() -> list[str]:
    """How each filter is written: NAME or NAME=VALUE."""
    return [f"{name}={kind.value}" if kind.value else name for name, kind in known_filters().items()]
