"""Progress of tasks: running totals and the callback that receives them."""

from collections.abc import Callable
from typing import NamedTuple


class TaskProgress(NamedTuple):
    """Running totals: input bytes read, text bytes in them, documents and tokens written."""

    file_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0

    def plus(self, other: "TaskProgress") -> "TaskProgress":
        return TaskProgress(*map(sum, zip(self, other, strict=True)))


TaskReport = Callable[[TaskProgress], None]
"""Callback that receives the totals of one or more tasks. If it raises, the work stops."""
