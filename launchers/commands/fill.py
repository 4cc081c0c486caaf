"""`maskwright fill`: the most likely tokens for the masks of a text."""

import json
from typing import Annotated

import typer

from launchers.arguments import JsonFlag, ModelArgument, require_inputs


def fill(
    model: ModelArgument,
    text: Annotated[list[str], typer.Argument(metavar="TEXT", help="texts with [MASK], each in quotes")],
    top: Annotated[int, typer.Option(min=1, help="number of tokens for each mask")] = 5,
    as_json: JsonFlag = False,
) -> None:
    """Show the most likely tokens for each [MASK] of a text, with their probabilities.

    A run is exported to RUN/exports first. The probabilities of all tokens that are not special sum to 100%.

    Examples:

        maskwright fill runs/demo "The little [MASK] sat down by the fire."
        maskwright fill runs/demo "They came to the [MASK] of the Emerald [MASK]." --top 3 --json
    """
    require_inputs([model])
    from data_prep.common.errors import printable
    from data_prep.tokenizer import Spelling
    from evaluation.generation import Writer
    from launchers.display import text_console, text_table
    from pretrain.export import model_folder

    folder = model_folder(model)
    writer, spelling = Writer(folder), Spelling.open(folder)
    filled = [
        [[(spelling.text([id]).strip(), id, share) for id, share in tokens] for tokens in writer.fill(line, top)]
        for line in text
    ]
    if as_json:
        names = ("token", "id", "probability")
        named = [[[dict(zip(names, token, strict=True)) for token in tokens] for tokens in masks] for masks in filled]
        print(json.dumps([{"text": line, "masks": masks} for line, masks in zip(text, named, strict=True)], indent=1))
        return
    rows = [
        ("" if number else printable(line), ", ".join(f"{printable(token)} {share:.0%}" for token, _, share in tokens))
        for line, masks in zip(text, filled, strict=True)
        for number, tokens in enumerate(masks)
    ]
    text_console().print(text_table(("text", "most likely first"), rows, texts=("most likely first",)))
