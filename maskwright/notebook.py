"""Progress and pages in the cells of a Jupyter notebook, which have no terminal."""

import html
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROGRESS = re.compile(r"step [\d,]+/(?!.*\| eval )|\s*\d+% ")


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    return "ipykernel" in sys.modules


@contextmanager
def output_lines(waiting: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line of a command.

    In a notebook, a line of progress replaces the one before it, and `waiting` is shown until the first one.
    """
    if not in_notebook():
        yield print
        return
    from IPython.display import display

    cell: Any = display({"text/plain": waiting}, raw=True, display_id=True)
    last = ""

    def show(line: str) -> None:
        nonlocal last
        if _PROGRESS.match(line):
            last = line
            cell.update({"text/plain": line}, raw=True)
        else:
            print(line, flush=True)

    try:
        yield show
    finally:
        cell.update({"text/plain": last if last.startswith("step ") else ""}, raw=True)


class HtmlPage:
    """A file with an HTML page. A notebook shows it in a frame that can reach nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"HtmlPage({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 640px; border: 0"
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'
