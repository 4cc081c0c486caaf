"""Helpers of the fine-tuning tasks: label order, label entries of a model config, note on truncated examples."""

import re
from collections.abc import Sequence
from typing import Any


def label_names(found: set[str]) -> list[str]:
    """Sort labels, integers by value."""
    if all(re.fullmatch(r"-?\d+", label) for label in found):
        return sorted(found, key=int)
    return sorted(found)


def label_options(labels: Sequence[str]) -> dict[str, Any]:
    """Label entries of a model config."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: id for id, label in enumerate(labels)}}


def cut_note(cut: int, of: int, what: str, max_length: int) -> list[str]:
    """Note on the number of truncated examples; empty if there are none."""
    return [f"{cut:,} of {of:,} {what} are longer than {max_length} tokens, and are cut"] if cut else []
