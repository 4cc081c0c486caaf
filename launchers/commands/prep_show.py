"""`maskwright prep show`: print one document of a data set."""

import json
from typing import Annotated

import typer

from launchers.actions import print_document
from launchers.arguments import DataSet


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
    print_document(dataset, shown, tokens)
