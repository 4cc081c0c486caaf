"""`maskwright fill`: the most likely tokens for the masks of a text."""

import json
from typing import Annotated

import typer
from rich.text import Text

from data_prep.common.errors import printable
from launchers.arguments import JsonFlag, ModelArgument, require_inputs

_WIDTH = 30


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
        maskwright fill hub:google-bert/bert-base-uncased "The little [MASK] sat down by the fire."
        maskwright fill runs/demo "They came to the [MASK] of the Emerald [MASK]." --top 3 --json
    """
    [model] = require_inputs([model])
    from launchers.display import CommandProgress, text_console, text_table

    with CommandProgress("loading the model"):
        from data_prep.tokenizer import Spelling
        from evaluation.generation import Writer, require_masks
        from pretrain.export import load_tokenizer, model_folder

        folder = model_folder(model)
        require_masks(text, load_tokenizer(folder))  # the model takes seconds to load
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
    console = text_console()
    for line, masks in zip(text, filled, strict=True):
        console.print(Text(_numbered(printable(line), len(masks)), style="bold"))
        rows = [
            (str(number) if rank == 0 else "", printable(f'"{token}"'), f"{share:.1%}", _bar(share))
            for number, tokens in enumerate(masks, 1)
            for rank, (token, _, share) in enumerate(tokens)
        ]
        console.print(text_table(("mask", "token", "probability", ""), rows, texts=("token", "")))


def _numbered(line: str, masks: int) -> str:
    """The text with numbers in its masks, if it has several that are all spelled [MASK]."""
    if masks < 2 or line.count("[MASK]") != masks:
        return line
    first, *parts = line.split("[MASK]")
    return first + "".join(f"[MASK {number}]{part}" for number, part in enumerate(parts, 1))


def _bar(share: float) -> str:
    """A bar of `_WIDTH` characters for 100%, in eighths of a character."""
    whole, eighths = divmod(round(share * 8 * _WIDTH), 8)
    return "\u2588" * whole + ("", *"\u258f\u258e\u258d\u258c\u258b\u258a\u2589")[eighths]
