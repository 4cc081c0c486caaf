"""`maskwright prep show`: print one document of a data set."""

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import printable
from launchers.arguments import DataSet

if TYPE_CHECKING:
    import numpy as np


def prep_show(
    location: DataSet,
    number: Annotated[int, typer.Argument(metavar="N", help="document number, from 0", show_default=False)],
    tokens: Annotated[bool, typer.Option("--tokens", help="show the tokens, one word per line")] = False,
    json_format: Annotated[bool, typer.Option("--json", help="as JSON, with token ids")] = False,
) -> None:
    """Print a document, decoded with the data set's tokenizer. Words to repair are shown as ⟦word⟧.

    Example:

        maskwright prep show data/demo/train 123
    """
    from data_prep.format import Dataset
    from data_prep.inspection import document

    dataset = Dataset(location)
    shown = document(dataset, number)
    if json_format:
        arrays = {"ids": shown.ids, "word_starts": shown.word_starts, "targets": shown.targets}
        lists = {name: None if array is None else array.tolist() for name, array in arrays.items()}
        typer.echo(json.dumps(vars(shown) | lists, ensure_ascii=False))
        return
    origin = " ".join(part for part in (shown.input, f"({shown.source})" if shown.source else "") if part)
    head = {
        "document": f"{shown.number:,}",
        "block": f"{shown.key}, document {shown.index:,} of it",
        "shard": shown.shard,
        "source": origin or "not recorded",
        **({} if shown.id is None else {"id": str(shown.id)}),
        "tokens": f"{len(shown.ids):,}",
        "words": f"{int(shown.word_starts.sum()):,}",
        **({} if shown.targets is None else {"targets": f"{int(shown.targets.sum()):,} tokens to repair"}),
    }
    for name, value in head.items():
        typer.echo(f"{name:<10}{printable(value)}")
    typer.echo()
    if not tokens:
        text = shown.text if shown.targets is None else _with_targets(shown.ids, shown.targets, dataset.tokenizer_path)
        typer.echo(printable(text, keep="\n\t"))
        return
    words: list[list[str]] = []
    targets = [False] * len(shown.ids) if shown.targets is None else shown.targets.tolist()
    for id, token, starts, target in zip(
        shown.ids.tolist(), shown.tokens, shown.word_starts.tolist(), targets, strict=True
    ):
        if starts or not words:
            words.append([])
        words[-1].append(f"⟦{printable(token)}⟧ ({id})" if target else f"{printable(token)} ({id})")
    for word in words:
        typer.echo("  ".join(word))


def _with_targets(ids: "np.ndarray", targets: "np.ndarray", tokenizer: Path) -> str:
    """Decode the text, with a mark around each run of targets."""
    from data_prep.tokenizer import Spelling

    spelling, text = Spelling.open(tokenizer), ""
    for target, group in groupby(zip(ids.tolist(), targets.tolist(), strict=True), lambda one: one[1]):
        part = spelling.text(id for id, _ in group)
        word = part.lstrip()
        text += f"{part[: len(part) - len(word)]}⟦{word}⟧" if target else part
    return text.removeprefix(" ")
