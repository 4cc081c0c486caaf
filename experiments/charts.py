"""PNG charts in one style. Needs matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from data_prep.common.files import atomic_writer

COLOURS = ("#1f6fb4", "#d9660d", "#2a8a4a", "#8a4fa8", "#b8323c", "#6b5b2a", "#12808a", "#b27700")
_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
}


@contextmanager
def chart(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, in inches. It is written to `path` as PNG when the block ends, and needs no display."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE), atomic_writer(path) as file:
        figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
        yield figure
        figure.savefig(file, format="png")
