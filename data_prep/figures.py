"""Pictures for people, drawn by matplotlib without a display and without its global state."""

from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.files import atomic_writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: "Figure", path: Path) -> None:
    """Write it, whole or not at all."""
    with atomic_writer(path) as file:
        figure.savefig(file, format="png")
