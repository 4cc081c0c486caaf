"""How far tasks have come."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskProgress:
    """Running totals: bytes read of the input, bytes of text in them, documents and tokens written."""

    file_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0


Report = Callable[[TaskProgress], None]
"""Gets the totals of one task, or of several; an exception that it raises stops the work."""
