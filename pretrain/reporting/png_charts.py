"""Charts as PNG files: panels of lines. Only this module uses matplotlib."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from data_prep.files import atomic_writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float] | NDArray[Any]
COLOURS = ("#1f6fb4", "#d9660d", "#2a8a4a", "#8a4fa8", "#b8323c", "#6b5b2a", "#12808a", "#b27700")
_INK, _GREY, _GRID = "#222222", "#777777", "#e5e5e5"


@dataclass(frozen=True)
class Line:
    """A line through points. band: lower and upper values of a band around it. style, marker: as in matplotlib."""

    x: Numbers
    y: Numbers
    colour: str
    label: str = ""
    style: Any = "-"
    marker: str = ""
    width: float = 1.4
    alpha: float = 0.9
    band: tuple[Numbers, Numbers] | None = None


@dataclass(frozen=True)
class Panel:
    """Lines that share two axes. `axes`: keywords of matplotlib's `Axes.set`, such as xlabel or ylim."""

    lines: Sequence[Line]
    title: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)


def draw_panels(
    panels: Sequence[Sequence[Panel]], path: Path, size: tuple[float, float], legend_columns: int = 3, **layout: Any
) -> None:
    """Write rows of panels, with one legend below them.

    Args:
        size: inches of width and height, without the legend.
        layout: keywords of matplotlib's `Figure.subplots`, such as sharey.
    """
    labels = {line.label for row in panels for panel in row for line in panel.lines if line.label}
    figure = new_figure(size[0], size[1] + 0.22 * -(-len(labels) // legend_columns))
    every = figure.subplots(len(panels), len(panels[0]), squeeze=False, **layout)
    for axes, panel in zip(every.flatten(), (panel for row in panels for panel in row), strict=True):
        _draw_panel(axes, panel)
    known: dict[str, Any] = {}
    for axes in figure.axes:
        known |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if known:
        figure.legend(
            known.values(), known, loc="outside lower center", ncols=legend_columns, frameon=False, fontsize=8
        )
    save_png(figure, path)


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure, in inches. It needs neither a display nor matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: "Figure", path: Path) -> None:
    """Write the figure atomically."""
    with atomic_writer(path) as file:
        figure.savefig(file, format="png")


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    for line in panel.lines:
        if line.band:
            axes.fill_between(line.x, *line.band, color=line.colour, alpha=0.15, linewidth=0)
        axes.plot(
            line.x,
            line.y,
            color=line.colour,
            label=_plain(line.label),
            linestyle=line.style,
            marker=line.marker,
            markersize=4.5,
            linewidth=line.width,
            alpha=line.alpha,
        )
    axes.set_title(_plain(panel.title), loc="left", color=_INK, fontsize=10, fontweight="bold")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(**panel.axes)


def _plain(text: str) -> str:
    """Text with "$" escaped, which would begin a formula in matplotlib."""
    return text.replace("$", r"\$")
