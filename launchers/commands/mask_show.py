"""`maskwright mask show`: show how a text is masked in several epochs."""

from pathlib import Path
from typing import Annotated

import typer

from launchers.actions import print_masks
from launchers.arguments import Overrides


def mask_show(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="text in quotes", show_default=False)],
    tokenizer: Annotated[str, typer.Option(help="folder, tokenizer.json or hub:OWNER/NAME")],
    overrides: Overrides = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with masking:, run.seed, data.seq_len ...")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="number of steps, each in a new epoch")] = 4,
) -> None:
    """Show how a text is masked in several epochs, with the masks that training draws.

    The settings have the same names as in `maskwright train`. Of a long text, the first row of data.seq_len tokens is
    shown. For the text of a run, use `maskwright replay`.

    Examples:

        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer
        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer masking.strategy=span
        maskwright mask show "$(cat a.txt)" --tokenizer hub:google-bert/bert-base-uncased masking.rate=0.3
    """
    print_masks(text, tokenizer, overrides or [], config, steps)
