"""PNG charts of layer measures: similarity of consecutive layers, and information about tokens by layer."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.charts import COLOURS, chart
from experiments.layers.layer_analysis import ModelMeasures
from experiments.layers.measures import Estimate

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


def draw_charts(measured: Sequence[ModelMeasures], folder: Path) -> list[Path]:
    """Write similarity.png and information.png, and return the paths of those that have something to show.

    The other one is removed if it exists, because an old chart would be mistaken for these models.
    """
    short = _short_names([one.model for one in measured])
    shown = [replace(one, model=f"{short[one.model]} ({one.objective})") for one in measured]
    written = []
    for path, draw, has_values in (
        (folder / "similarity.png", _draw_similarity, any(one.similarities for one in shown)),
        (folder / "information.png", _draw_information, any(one.information for one in shown)),
    ):
        if has_values:
            draw(shown, path)
            written.append(path)
        else:
            path.unlink(missing_ok=True)
    return written


def _short_names(names: list[str]) -> dict[str, str]:
    """Short names by path: the last part of the path, or all of it where the last part is ambiguous."""
    last = {name: Path(name).resolve().name for name in names}
    return {name: short if list(last.values()).count(short) == 1 else name for name, short in last.items()}


def _draw_similarity(shown: Sequence[ModelMeasures], path: Path) -> None:
    """Write one panel per measure, with one line per model, text and kind of positions, and a dotted one of chance."""
    colours = dict(zip(dict.fromkeys(one.model for one in shown), itertools.cycle(COLOURS), strict=False))
    several = len({one.text for one in shown}) > 1
    with chart(path, 11, 4.2) as figure:
        panels = dict(zip(_MEASURES, figure.subplots(1, len(_MEASURES)), strict=True))
        for one in shown:
            for similarity in one.similarities:
                axes, colour = panels[similarity.measure], colours[one.model]
                layers = [layer + 0.5 for layer in range(len(similarity.between))]
                unmasked = similarity.kind == "unmasked"
                style: dict[str, Any] = {"marker": "s" if unmasked else "o", "alpha": 0.45 if unmasked else 0.9}
                style["linestyle"] = "-" if one.text == "natural" else (0, (4, 2))
                label = f"{one.model}{f', {one.text}' if several else ''}: {similarity.kind} positions"
                _plot(axes, layers, similarity.between, color=colour, label=label, **style)
                axes.plot(layers, similarity.chance, color=colour, linestyle=":", linewidth=0.8, alpha=0.7)
        for name, axes in panels.items():
            _label(axes, f"{_MEASURES[name]} of consecutive layers", "between layers (dotted: chance)")
        _add_legend(figure, columns=2)


def _draw_information(shown: Sequence[ModelMeasures], path: Path) -> None:
    """Write one panel per model and text, with one line per kind of positions and token."""
    models, texts = (
        list(dict.fromkeys(names)) for names in zip(*((one.model, one.text) for one in shown), strict=True)
    )
    with chart(path, max(4.2 * len(models), 6), 3.4 * len(texts) + 0.5) as figure:
        panels = figure.subplots(len(texts), len(models), squeeze=False, sharey=True)
        for one in shown:
            axes = panels[texts.index(one.text)][models.index(one.model)]
            for found in one.information:
                colour, marker, label = _LINES[found.kind, found.of]
                _plot(axes, range(len(found.at)), found.at, color=colour, marker=marker, label=label)
            _label(axes, one.model if len(texts) == 1 else f"{one.model}, {one.text}", "layer (0: embeddings)")
        for row in panels:
            row[0].set_ylabel("share of the token's entropy\nthat the states explain")
        _add_legend(figure, columns=2 if len(models) < 3 else 4)


def _plot(axes: Axes, places: Sequence[float], estimates: Sequence[Estimate], **style: Any) -> None:
    """Draw a line through the estimates, and a band of their intervals."""
    low, high = [one.low for one in estimates], [one.high for one in estimates]
    axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    style["label"] = _plain(style["label"])
    axes.plot(places, [one.value for one in estimates], **{"markersize": 4.5, "linewidth": 1.4, "alpha": 0.9} | style)


def _label(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(_plain(title))
    axes.set(xlabel=xlabel, ylim=(-0.08, 1.05))


def _plain(text: str) -> str:
    """Text with "$" escaped, which would begin a formula in matplotlib."""
    return text.replace("$", r"\$")


def _add_legend(figure: Figure, columns: int) -> None:
    """Add one legend below all panels."""
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        lines |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.set_figheight(figure.get_figheight() + 0.22 * -(-len(lines) // columns))
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns)
