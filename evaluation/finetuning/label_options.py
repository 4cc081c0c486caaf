"""Labels in a model's config, and the note on examples that were cut: shared by the fine-tuning tasks."""

import re
from collections.abc import Sequence
from typing import Any


def label_names(found: set[str]) -> list[str]:
    """Labels in order, integers by their size."""
    if all(re.fullmatch(r"-?\d+", label) for label in found):
        return sorted(found, key=int)
    return sorted(found)


def label_options(labels: Sequence[str]) -> dict[str, Any]:
    """What the config of a model says of its labels."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: id for id, label in enumerate(labels)}}


def cut_note(cut: int, of: int, what: str, max_length: int) -> list[str]:
    """A note on how many examples were too long, if any."""
    return [f"{cut:,} of {of:,} {what} are longer than {max_length} tokens, and are cut"] if cut else []
