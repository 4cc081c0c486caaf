"""PNG charts of layer measures: similarity of consecutive layers, and information about tokens by layer."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.layers.layer_analysis import ModelMeasures
from evaluation.layers.measures import Estimate
from pretrain.reporting import COLOURS, Line, Panel, draw_panels

_AXES: dict[str, Any] = {"ylim": (-0.08, 1.05)}
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
    """Write one panel per measure, with one line per model, text and kind of positions, and a dotted one of chance."""
    colours = dict(zip(dict.fromkeys(one.model for one in shown), itertools.cycle(COLOURS), strict=False))
    several = len({one.text for one in shown}) > 1
    panels: dict[str, list[Line]] = {measure: [] for measure in _MEASURES}
    for one in shown:
        for similarity in one.found.similarities:
            layers = [layer + 0.5 for layer in range(len(similarity.between))]
            unmasked, colour = similarity.kind == "unmasked", colours[one.model]
            style: dict[str, Any] = {
                "marker": "s" if unmasked else "o",
                "style": "-" if one.text == "natural" else (0, (4, 2)),
                "alpha": 0.45 if unmasked else 0.9,
            }
            label = f"{one.model}{f', {one.text}' if several else ''}: {similarity.kind} positions"
            chance = Line(layers, similarity.chance, colour, style=":", width=0.8, alpha=0.7)
            panels[similarity.measure] += [_line(layers, similarity.between, colour, label, **style), chance]
    axes = _AXES | {"xlabel": "between layers (dotted: chance)"}
    row = [Panel(lines, f"{_MEASURES[name]} of consecutive layers", axes=axes) for name, lines in panels.items()]
    draw_panels([row], path, (11, 4.2), legend_columns=2)


def draw_information(shown: Sequence[ModelMeasures], path: Path) -> None:
    """Write one panel per model and text, with one line per kind of positions and token."""
    models, texts = (
        list(dict.fromkeys(names)) for names in zip(*((one.model, one.text) for one in shown), strict=True)
    )
    rows = [[Panel([])] * len(models) for _ in texts]
    for one in shown:
        row, column = texts.index(one.text), models.index(one.model)
        axes = _AXES | {"xlabel": "layer (0: embeddings)"}
        if not column:
            axes["ylabel"] = "share of the token's entropy\nthat the states explain"
        lines = []
        for found in one.found.information:
            colour, marker, label = _LINES[found.kind, found.of]
            lines.append(_line(range(len(found.at)), found.at, colour, label, marker=marker))
        rows[row][column] = Panel(lines, one.model if len(texts) == 1 else f"{one.model}, {one.text}", axes=axes)
    size = max(4.2 * len(models), 6), 3.4 * len(texts) + 0.5
    draw_panels(rows, path, size, legend_columns=2 if len(models) < 3 else 4, sharey=True)


def _line(places: Sequence[float], estimates: Sequence[Estimate], colour: str, label: str, **style: Any) -> Line:
    band = [one.low for one in estimates], [one.high for one in estimates]
    return Line(places, [one.value for one in estimates], colour, label, band=band, **style)
