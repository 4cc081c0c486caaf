"""PNG charts of layer measures: similarity of consecutive layers, and information about tokens by layer."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.layers.analyze_models import ModelMeasures
from evaluation.layers.jackknife import Estimate
from evaluation.layers.layer_analysis import Similarity
from pretrain.reporting import COLOURS, Line, Panel, draw_panels

_MEASURES = {"pwcca": "PWCCA", "cka": "linear CKA"}
_LINES = {  # (kind of positions, "seen" or "target"): colour, marker, label
    ("all", "seen"): (COLOURS[0], "o", "the token itself"),
    ("all", "target"): (COLOURS[1], "o", "the next token"),
    ("unmasked", "seen"): (COLOURS[0], "o", "the token, at unmasked positions"),
    ("kept", "seen"): (COLOURS[2], "s", "the token, where it is kept and predicted"),
    ("random", "seen"): (COLOURS[3], "v", "the random token in its place"),
    ("random", "target"): (COLOURS[4], "^", "the target, under a random token"),
    ("masked", "target"): (COLOURS[1], "D", "the target, under [MASK]"),
}


def draw_similarity(shown: Sequence[ModelMeasures], path: Path) -> None:
    """Write one panel per measure, with one line per model, text and kind of positions."""
    colours = dict(zip(dict.fromkeys(one.model for one in shown), itertools.cycle(COLOURS), strict=False))
    depths = {one.found.layers for one in shown}
    several = len({one.text for one in shown}) > 1
    panels = []
    for measure, name in _MEASURES.items():
        lines = [
            line
            for one in shown
            for similarity in one.found.similarities
            if similarity.measure == measure
            for line in _similarity_lines(similarity, one, colours[one.model], several, by_depth=len(depths) > 1)
        ]
        panels.append(Panel(lines, f"{name} of consecutive layers", axes=_layer_axis(depths, between=True)))
    draw_panels([panels], path, (11, 4.2), legend_columns=2)


def draw_information(shown: Sequence[ModelMeasures], path: Path) -> None:
    """Write one panel per model and text, with one line per kind of positions and token."""
    models, texts = (
        list(dict.fromkeys(names)) for names in zip(*((one.model, one.text) for one in shown), strict=True)
    )
    rows = [[Panel([])] * len(models) for _ in texts]
    for one in shown:
        row, column = texts.index(one.text), models.index(one.model)
        axes = _layer_axis({one.found.layers}, between=False)
        if not column:
            axes["ylabel"] = "share of the token's entropy\nthat the states explain"
        lines = []
        for found in one.found.information:
            colour, marker, label = _LINES[found.kind, found.of]
            lines.append(_line(range(len(found.at)), found.at, colour, label, marker=marker))
        rows[row][column] = Panel(lines, one.model if len(texts) == 1 else f"{one.model}, {one.text}", axes=axes)
    size = max(4.2 * len(models), 6), 3.4 * len(texts) + 0.5
    draw_panels(rows, path, size, legend_columns=2 if len(models) < 3 else 4, sharey=True)


def _similarity_lines(
    similarity: Similarity, one: ModelMeasures, colour: str, several: bool, by_depth: bool
) -> list[Line]:
    """Lines of the measure and of its chance level. by_depth: the x axis is the share of the model's depth."""
    places = [layer + 0.5 for layer in range(len(similarity.between))]
    if by_depth:
        places = [place / len(places) for place in places]
    style: dict[str, Any] = {
        "marker": "s" if similarity.kind == "unmasked" else "o",
        "style": "-" if one.text == "natural" else (0, (4, 2)),
        "alpha": 0.45 if similarity.kind == "unmasked" else 0.9,
    }
    label = f"{one.model}{f', {one.text}' if several else ''}: {similarity.kind} positions"
    chance = Line(places, similarity.chance, colour, style=":", width=0.8, alpha=0.7)
    return [_line(places, similarity.between, colour, label, **style), chance]


def _line(places: Sequence[float], estimates: Sequence[Estimate], colour: str, label: str, **style: Any) -> Line:
    band = [one.low for one in estimates], [one.high for one in estimates]
    return Line(places, [one.value for one in estimates], colour, label, band=band, **style)


def _layer_axis(depths: set[int], between: bool) -> dict[str, Any]:
    axes: dict[str, Any] = {"ylim": (-0.08, 1.05)}
    if len(depths) > 1:
        return axes | {"xlabel": "share of the model's depth (dotted: chance)"}
    (layers,) = depths
    step = max(1, layers // 12)
    if not between:
        return axes | {"xlabel": "layer (0: embeddings)", "xticks": range(0, layers + 1, step)}
    first = range(0, layers, step)
    names = [f"{layer}–{layer + 1}" for layer in first]
    ticks = [layer + 0.5 for layer in first]
    return axes | {"xlabel": "between layers (dotted: chance)", "xticks": ticks, "xticklabels": names}
