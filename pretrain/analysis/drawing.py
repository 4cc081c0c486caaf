"""The measures of models as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.figures import new_figure, save_png
from pretrain.analysis.jackknife import Estimate
from pretrain.analysis.layers import Found, Information, Similarity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _GREY = "#222222", "#777777"
_COLOURS = ("#1f6fb4", "#d9660d", "#2a8a4a", "#8a4fa8", "#b8323c", "#6b5b2a")
_MEASURES = {"pwcca": "PWCCA", "cka": "linear CKA"}
_MARKERS = {"all": "o", "predicted": "o", "unmasked": "s"}
_LINES = {  # of what is told: colour, marker, what it is called
    ("all", "seen"): ("#1f6fb4", "o", "the token itself"),
    ("all", "target"): ("#d9660d", "o", "the next token"),
    ("unmasked", "seen"): ("#1f6fb4", "o", "the token, at unmasked positions"),
    ("kept", "seen"): ("#2a8a4a", "s", "the token, where it is kept and predicted"),
    ("random", "seen"): ("#8a4fa8", "v", "the random token in its place"),
    ("random", "target"): ("#b8323c", "^", "the target, under a random token"),
    ("masked", "target"): ("#d9660d", "D", "the target, under [MASK]"),
}


@dataclass(frozen=True)
class Shown:
    """A model in a text, and what the picture calls it."""

    model: str
    text: str
    found: Found


def draw_similarity(shown: Sequence[Shown], path: Path) -> None:
    """Write a PNG: a panel for each measure, in which each model in each text has a line for each kind of positions."""
    lines = sum(found.measure == "cka" for one in shown for found in one.found.similarities)
    figure = new_figure(11, 4.2 + 0.1 * lines)
    several = len({one.text for one in shown}) > 1
    models, depths = list(dict.fromkeys(one.model for one in shown)), {one.found.layers for one in shown}
    for axes, (measure, name) in zip(figure.subplots(1, 2), _MEASURES.items(), strict=True):
        for one in shown:
            colour = _COLOURS[models.index(one.model) % len(_COLOURS)]
            for found in one.found.similarities:
                if found.measure == measure:
                    _draw_line(axes, found, one, depths, colour, several)
        _finish(axes, f"{name} of consecutive layers", depths, between=True)
    handles, names = axes.get_legend_handles_labels()
    _legend(figure, handles, names, 2)
    save_png(figure, path)


def draw_information(shown: Sequence[Shown], path: Path) -> None:
    """Write a PNG: a panel for each model in each text, models beside each other, with a line for each measure."""
    models, texts = (
        list(dict.fromkeys(names)) for names in zip(*((one.model, one.text) for one in shown), strict=True)
    )
    figure = new_figure(max(4.2 * len(models), 6), 3.4 * len(texts) + 0.9)
    panels = figure.subplots(len(texts), len(models), squeeze=False, sharey=True)
    known: dict[str, Any] = {}
    for one in shown:
        axes = panels[texts.index(one.text)][models.index(one.model)]
        for found in one.found.information:
            known |= {name: line for line, name in [_draw_information(axes, found)]}
        _finish(axes, one.model if len(texts) == 1 else f"{one.model}, {one.text}", {one.found.layers}, between=False)
        axes.axhline(0, color=_GREY, linewidth=0.8)
    for row in panels:
        row[0].set_ylabel("share of the token's entropy\nthat the states tell")
    _legend(figure, list(known.values()), list(known), 2 if len(models) < 3 else 4)
    save_png(figure, path)


def _draw_line(axes: "Axes", found: Similarity, one: Shown, depths: set[int], colour: str, several: bool) -> None:
    number = range(len(found.between))
    places = [(layer + 0.5) / (len(found.between) if len(depths) > 1 else 1) for layer in number]
    style = "-" if one.text == "natural" else (0, (4, 2))
    label = f"{one.model}{f', {one.text}' if several else ''}: {found.kind} positions"
    marker = _MARKERS[found.kind]
    strong = 0.9 if found.kind != "unmasked" else 0.45
    _with_interval(
        axes, places, found.between, colour=colour, marker=marker, linestyle=style, alpha=strong, label=label
    )
    axes.plot(places, found.chance, color=colour, linewidth=0.8, linestyle=":", alpha=0.7)


def _draw_information(axes: "Axes", found: Information) -> tuple[Any, str]:
    colour, marker, name = _LINES[found.kind, found.of]
    line = _with_interval(axes, list(range(len(found.at))), found.at, colour=colour, marker=marker)
    return line, name


def _with_interval(
    axes: "Axes",
    places: list[float] | list[int],
    estimates: Sequence[Estimate],
    colour: str,
    marker: str,
    linestyle: Any = "-",
    alpha: float = 0.9,
    label: str | None = None,
) -> Any:
    values = [one.value for one in estimates]
    low, high = [one.low for one in estimates], [one.high for one in estimates]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    (line,) = axes.plot(
        places, values, color=colour, marker=marker, markersize=4.5, linewidth=1.4, alpha=alpha, label=label
    )
    line.set_linestyle(linestyle)
    return line


def _finish(axes: "Axes", title: str, depths: set[int], between: bool) -> None:
    axes.set_title(title, loc="left", color=_INK, fontsize=10, fontweight="bold")
    axes.grid(color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylim(-0.08, 1.05)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(depths) > 1:
        axes.set_xlabel("share of the model's depth (dotted: chance)")
        return
    (layers,) = depths
    step = max(1, layers // 12)
    if between:
        axes.set_xlabel("between layers (dotted: chance)")
        axes.set_xticks([layer + 0.5 for layer in range(0, layers, step)])
        axes.set_xticklabels([f"{layer}–{layer + 1}" for layer in range(0, layers, step)])
    else:
        axes.set_xlabel("layer (0: embeddings)")
        axes.set_xticks(range(0, layers + 1, step))


def _legend(figure: "Figure", lines: Sequence[Any], names: Sequence[str], columns: int) -> None:
    figure.legend(lines, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=4)
