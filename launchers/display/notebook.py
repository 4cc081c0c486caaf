"""Progress and pages in the cells of a Jupyter notebook, which have no terminal."""

import html
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SECONDS = 0.2  # between two updates


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")


class CellLine:
    """A line below the running cell. Each text replaces the one before it."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        self._shown = 0.0

    def show(self, text: str, now: bool = False) -> None:
        """Show a text, unless the last one is too new; `now`: in any case."""
        if now or time.monotonic() - self._shown >= _SECONDS:
            self._shown = time.monotonic()
            self._handle.update({"text/plain": text}, raw=True)


def cell_output() -> Callable[[str], None] | None:
    """In a notebook, a function that shows a line of a training process in the cell; elsewhere None.

    A line of progress replaces the one before it; lines with results of an evaluation stay.
    """
    if not in_notebook():
        return None
    progress = CellLine()

    def show(line: str) -> None:
        if line.startswith("step ") and "| eval " not in line:
            progress.show(line)
        else:
            print(line, flush=True)

    return show


class HtmlPage:
    """A file with an HTML page. A notebook shows it in a frame of its own, where it can reach nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"HtmlPage({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 640px; border: 0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'
