"""Documents as text in which every predicted token is marked."""

from launchers.spelling import Spelling, printable
from pretrain.data.inspect import Document, Kind

Segment = tuple[str, Kind | None]
LEGEND: list[Segment] = [
    ("⟦word⟧", "mask"),
    (" the model sees [MASK], ", None),
    ("⟦word→other⟧", "random"),
    (" it sees another token, ", None),
    ("⟦word=⟧", "kept"),
    (" it sees the word itself", None),
]
CAUSAL_LEGEND: list[Segment] = [("every token but special ones is predicted from those before it", None)]


def marked(document: Document, spelling: Spelling, outside: frozenset[int]) -> list[Segment]:
    """A document's original text in segments, each with what became of it, or None for text that is not predicted.

    Tokens in `outside`, those that packing adds, are left out. A mark stands around the token alone: where it is a part
    of a word, so is the mark ("em⟦bed⟧ding"). The other token stands there as it is alone ("⟦ing→##ed⟧"). Tokens of a
    causal model have no mark: nearly all are predicted.
    """
    segments: list[Segment] = []
    plain: list[int] = []
    predictions = {prediction.place: prediction for prediction in document.predictions}
    for place, id in enumerate(document.original):
        prediction = predictions.get(place)
        if prediction is None or prediction.kind == "next":
            if id not in outside:
                plain.append(id)
            continue
        space, token = _split_space(spelling.text([id]))
        segments.append((spelling.text(plain) + space, None))
        plain = []
        mark = {"mask": "", "random": f"→{spelling.name(document.seen[place])}", "kept": "="}[prediction.kind]
        segments.append((f"⟦{token or spelling.name(id)}{mark}⟧", prediction.kind))
    segments.append((spelling.text(plain), None))
    shown = [(printable(text, keep="\n\t"), kind) for text, kind in segments if text]
    return [(shown[0][0].lstrip(" "), shown[0][1]), *shown[1:]] if shown else []


def _split_space(text: str) -> tuple[str, str]:
    """White space at the front, and the rest."""
    rest = text.lstrip()
    return text[: len(text) - len(rest)], rest


def plain_text(segments: list[Segment]) -> str:
    """Segments without colours."""
    return "".join(text for text, _ in segments)
