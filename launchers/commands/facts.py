"""The facts of `prep info` as tables that read well without colours, on a terminal or in a pipe."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 120
_BAR = 30

Cell = Callable[[Any], str]


def print_facts(facts: dict[str, Any], title: str) -> None:
    """Print `data_prep.inspect.summary`'s facts, with `packed` in the rows of `fill`, to stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    console.print(Text(title, style="bold"))
    for table in (_overview(facts), _sources(facts), _lengths(facts), _fill(facts), _tokens(facts)):
        if table is not None:
            console.print(table)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _overview(facts: dict[str, Any]) -> Table:
    tokenizer, left_out = facts["tokenizer"], facts["left_out"]
    share = facts["targets"] / facts["tokens"] if "targets" in facts else None
    rows = {
        "documents": _count(facts["documents"]),
        "tokens": _count(facts["tokens"]),
        "words": _count(facts["words"]),
        "tokens a word": _number(facts["tokens_per_word"]),
        "UTF-8 bytes a token": _number(facts["bytes_per_token"]),
        "unknown tokens": f"{_count(facts['unknown'])} ({_percent(facts['unknown_rate'])})",
        "unigram entropy": f"{_number(facts['unigram_entropy'])} nats a token",
        "vocabulary": f"{facts['vocabulary_used']:,} of {tokenizer['vocab_size']:,} ids occur",
        "size": f"{facts['bytes']:,} bytes, {facts['blocks']:,} blocks, {facts['shards']:,} shards, {facts['dtype']}",
        **({"targets": f"{facts['targets']:,} tokens to repair ({_percent(share)})"} if share is not None else {}),
        "inputs": _count(facts["inputs"]),
        "left out": ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count) or "nothing",
        "fingerprint": facts["fingerprint"],
        "tokenizer": tokenizer["sha256"],
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _sources(facts: dict[str, Any]) -> Table | None:
    if not facts["sources"]:
        return None
    columns: dict[str, tuple[str, Cell]] = {
        "inputs": ("inputs", _count),
        "documents": ("documents", _count),
        "tokens": ("tokens", _count),
        "tokens/word": ("tokens_per_word", _number),
        "bytes/token": ("bytes_per_token", _number),
        "unknown": ("unknown_rate", _percent),
        "entropy": ("unigram_entropy", _number),
    }
    table = _table("By source", "source", "share", *columns, "left out")
    for source in facts["sources"]:
        name = "(of no input)" if source["name"] is None else source["name"] or "(no name)"
        cells = [cell(source[key]) for key, cell in columns.values()]
        share = _percent(source["tokens"] / facts["tokens"])
        table.add_row(Text(name), share, *cells, _count(sum(source["left_out"].values())))
    return table


def _lengths(facts: dict[str, Any]) -> Table:
    lengths = facts["document_length"]
    ranks = ", ".join(f"{name} {value:,.0f}" for name, value in lengths.items())
    table = _table(f"Document lengths: {ranks}", "tokens", "documents", "%", "% of tokens")
    table.add_column("documents")
    largest = max(bin["documents"] for bin in facts["length_histogram"])
    for bin in facts["length_histogram"]:
        table.add_row(
            f"{bin['from']:,} to {bin['to']:,}",
            _count(bin["documents"]),
            f"{100 * bin['documents'] / facts['documents']:.1f}",
            f"{100 * bin['tokens'] / facts['tokens']:.1f}",
            "#" * -(-bin["documents"] * _BAR // largest),
        )
    return table


def _fill(facts: dict[str, Any]) -> Table:
    table = _table(
        "Fill: share of slots that are not padding",
        "seq_len",
        "a document a row",
        "packed as for training",
        "documents cut",
    )
    for row in facts["fill"]:
        table.add_row(
            f"{row['seq_len']:,}", _percent(row["alone"]), _percent(row["packed"]), _count(row["documents_cut"])
        )
    return table


def _tokens(facts: dict[str, Any]) -> Table | None:
    if not facts["most_frequent"]:
        return None
    table = _table("Most frequent tokens", "token", "id", "count", "share")
    for token in facts["most_frequent"]:
        text = "" if token["text"] is None else repr(token["text"])
        if "\N{REPLACEMENT CHARACTER}" in text:  # a part of a character has no text of its own
            text = token["token"]
        table.add_row(Text(text), str(token["id"]), _count(token["count"]), _percent(token["share"]))
    return table


def _count(value: int | None) -> str:
    return "not recorded" if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:,.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}%"
