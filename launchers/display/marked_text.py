"""Decoded documents with a mark around every predicted token."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from data_prep.common.errors import printable

if TYPE_CHECKING:
    from data_prep.tokenizer import Spelling
    from pretrain.data import BatchDocument

Segment = tuple[str, str | None]
_MASK_LEGEND: list[Segment] = [
    ("⟦word⟧", "mask"),
    (" the model sees [MASK], ", None),
    ("⟦word→other⟧", "random"),
    (" it sees another token, ", None),
    ("⟦word=⟧", "kept"),
    (" it sees the word itself", None),
]
_STYLES = {"mask": "bold yellow", "random": "bold red", "kept": "bold cyan", None: ""}
LEGENDS: dict[str, list[Segment]] = {  # by the value of pretrain.config.View, whose import is slow
    "bidirectional": _MASK_LEGEND,
    "causal": [("every token but special ones is predicted from those before it", None)],
    "prefix": [("the second text is predicted, from the first one and the tokens before it", None)],
}


def marked(
    document: "BatchDocument", spelling: "Spelling", outside: frozenset[int], units: Sequence[int] | None = None
) -> list[Segment]:
    """Split a document's original text into segments, each with its fate: None for text that is not predicted.

    Tokens in `outside`, which packing adds, are left out. A mark surrounds only the token, also inside a word
    ("em⟦bed⟧ding"). A replacement token is shown in its own spelling ("⟦ing→##ed⟧"). `units` has a number for each
    position: tokens with the same number and fate share a mark ("⟦old ship⟧"). Tokens of a causal model have no mark,
    because nearly all are predicted.
    """
    segments: list[Segment] = []
    kinds = {prediction.place: prediction.kind for prediction in document.predictions if prediction.kind != "next"}
    inside = [place for place, id in enumerate(document.original) if place in kinds or id not in outside]

    def kind_and_unit(place: int) -> tuple[str | None, int]:
        kind = kinds.get(place)
        return kind, -1 if kind is None else place if units is None else units[place]

    for (kind, _), places in groupby(inside, key=kind_and_unit):
        here = list(places)
        ids = [document.original[place] for place in here]
        text = spelling.text(ids)
        if kind is None:
            segments.append((text, None))
            continue
        bare = text.lstrip()
        seen = " ".join(spelling.name(document.seen[place]) for place in here)
        mark = {"mask": "", "random": f"→{seen}", "kept": "="}[kind]
        segments.append((text[: len(text) - len(bare)], None))
        segments.append((f"⟦{bare or ' '.join(map(spelling.name, ids))}{mark}⟧", kind))
    shown = [(printable(text, keep="\n\t"), kind) for text, kind in segments if text]
    return [(shown[0][0].lstrip(" "), shown[0][1]), *shown[1:]] if shown else []


def plain_text(segments: list[Segment]) -> str:
    """Join segments without colours."""
    return "".join(text for text, _ in segments)


def coloured(segments: list[Segment]) -> Text:
    """Join segments with colours for a console."""
    return Text.assemble(*((text, _STYLES[kind]) for text, kind in segments))


def listed(segments: list[Segment]) -> Text:
    """Format one document of a list for a console."""
    return Text.assemble(("- ", "dim"), coloured(segments))
