"""Plain tables for terminals and pipes, readable without colours."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from data_prep.common.errors import without_controls

PIPE_WIDTH = 120


def text_console(pipe_width: int = PIPE_WIDTH) -> Console:
    """Console on standard output. If it is not a terminal, lines have up to `pipe_width` columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=pipe_width)


def text_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]] = (), title: str = "", texts: Collection[str] = ()
) -> Table:
    """Build a table from column names and rows of cells.

    Args:
        texts: text columns in addition to the first column. Other columns hold numbers and are right-aligned.
    """
    lines = box.SIMPLE_HEAD if title else None  # a table alone is as easy to cut into words as to read
    heading = Text(without_controls(title, keep="\n")) or None
    table = Table(title=heading, title_justify="left", title_style="bold", box=lines, pad_edge=False)
    for name in columns:
        is_text = name in (columns[0], *texts)
        table.add_column(Text(without_controls(name)), justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(without_controls(cell, keep="\n")) for cell in row))
    return table


def facts_table(values: Mapping[str, str]) -> Table:
    """Build a table with a name and its value on each line. Empty values are left out."""
    table = Table("", Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
    for name, value in values.items():
        if value:
            table.add_row(name, Text(without_controls(value, keep="\n")))
    return table
