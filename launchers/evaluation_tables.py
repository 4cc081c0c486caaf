"""The results of `maskwright evaluate` as tables for a terminal."""

import functools
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from data_prep.spelling import printable
from launchers.commands.facts import PIPE_WIDTH

_HELD_OUT = {
    "by_frequency": "by how often the token is in the counted text",
    "by_word_class": "by the place of the token in its word",
    "by_length": "by tokens of the document, or piece of one",
}
_MEASURES = {
    "held_out.loss": ("held-out loss, nats", 1, "{:+.4f}"),
    "held_out.masked_accuracy": ("masked accuracy, points", 100, "{:+.2f}"),
    "pairs.accuracy": ("accuracy on pairs, points", 100, "{:+.2f}"),
}


def print_results(found: dict[str, Any]) -> None:
    """Print all results."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    models = found["models"]
    if held_out := {name: results["held_out"] for name, results in models.items() if "held_out" in results}:
        _print_held_out(console, held_out, found["settings"]["held_out"])
    if pairs := {name: results["pairs"] for name, results in models.items() if "pairs" in results}:
        _print_pairs(console, pairs)
    if found["comparisons"]:
        console.print(_comparisons(found["comparisons"]))


def _print_held_out(console: Console, results: dict[str, Any], settings: dict[str, Any]) -> None:
    table = _table(
        f"Held-out text: {settings['data']}, {settings['strategy']} masks at {settings['rate']:g}, rows of "
        f"{settings['seq_len']}",
        ("model", "loss (nats)", "perplexity", "masked accuracy", "predictions", "rows"),
    )
    for name, one in results.items():
        figures = f"{one['loss']:.4f}", f"{one['perplexity']:,.2f}", f"{one['masked_accuracy']:.2%}"
        table.add_row(Text(name), *figures, f"{one['predictions']:,}", f"{one['rows']:,}")
    console.print(table)
    first = next(iter(results.values()))
    for part, title in _HELD_OUT.items():
        table = _table(f"Loss {title}", ("", "predictions", *results))
        for group, figures in first[part].items():
            losses = (f"{one[part][group]['loss']:.4f}" for one in results.values())
            table.add_row(group, f"{figures['predictions']:,}", *losses)
        console.print(table)


def _print_pairs(console: Console, results: dict[str, Any]) -> None:
    table = _table("Minimal pairs", ("model", "score", "accuracy", "95% interval", "pairs", "ties"))
    for name, one in results.items():
        accuracy = f"{one['accuracy']:.2%}", _interval(one["interval"], lambda value: f"{value:.2%}")
        table.add_row(Text(name), one["score"], *accuracy, f"{one['pairs']:,}", f"{one['ties']:,}")
    console.print(table)
    groups = next(iter(results.values()))["by"]
    for kind in dict.fromkeys(group.partition(":")[0] for group in groups):
        table = _table(f"Accuracy by {kind}", (kind, "pairs", *results))
        for group, figures in groups.items():
            if group.startswith(f"{kind}:"):
                shares = (f"{one['by'][group]['accuracy']:.1%}" for one in results.values())
                table.add_row(Text(printable(group.partition(":")[2])), f"{figures['pairs']:,}", *shares)
        console.print(table)


def _comparisons(comparisons: list[dict[str, Any]]) -> Table:
    title = f"Difference from {comparisons[0]['with']}, with 95% intervals of a paired bootstrap"
    table = _table(title, ("model", "measure", "difference", "95% interval"))
    for one in comparisons:
        name, factor, form = _MEASURES[one["measure"]]
        written = functools.partial(_scaled, factor, form)
        interval = _interval(one["interval"], written) if one["interval"] else "too few to say"
        table.add_row(Text(one["model"]), name, written(one["difference"]), interval)
    return table


def _scaled(factor: float, form: str, value: float) -> str:
    return form.format(factor * value)


def _interval(bounds: list[float], form: Callable[[float], str]) -> str:
    return f"{form(bounds[0])} to {form(bounds[1])}"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE, title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if number == 0 else "right", overflow="fold")
    return table
