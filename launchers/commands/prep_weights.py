"""`maskwright prep weights`: write the weights of tokens for masking."""

from pathlib import Path
from typing import Annotated

import typer

from data_prep.common.errors import UserError
from launchers.arguments import DataSet, local
from launchers.display import CommandProgress


def prep_weights(
    location: DataSet,
    out: Annotated[Path, typer.Option(parser=local, metavar="FILE", help="list to write, a JSON file")],
    frequency: Annotated[float | None, typer.Option(min=0.01, max=4, metavar="POWER", help="count ** -POWER")] = None,
    content: Annotated[int | None, typer.Option(min=0, metavar="N", help="1; 0 for signs and N frequent words")] = None,
    words: Annotated[Path | None, typer.Option(metavar="FILE", help="lines: a word, or word, tab, weight")] = None,
    other: Annotated[
        float | None, typer.Option(min=0, help="with --words: weight of what FILE does not list  [default: 0]")
    ] = None,
) -> None:
    """Write the weights of tokens, so that masking selects some tokens more often than others.

    Give one of --frequency, --content and --words.

    Example:

        maskwright prep weights data/demo/train --out data/demo/rare.json --frequency 0.5
    """
    from data_prep.format import Dataset
    from data_prep.inspection import TokenWeights

    if sum(option is not None for option in (frequency, content, words)) != 1 or (other and not words):
        raise UserError("Give one of --frequency, --content and --words; --other is for --words.")
    if not out.resolve().parent.is_dir():
        raise UserError(f"No folder {out.resolve().parent}. Create it, or write {out.name} to another folder.")
    if out.exists():
        raise UserError(f"{out} exists; choose another --out.")
    left_out = 0
    with CommandProgress() as line:
        maker = TokenWeights(Dataset(location), lambda n, of: line.show(n, of, "reading"))
        if frequency is not None:
            weights = maker.by_frequency(frequency)
        elif content is not None:
            weights = maker.of_content(content)
        elif words is not None:
            weights, left_out = maker.of_words(_read(words), other or 0)
    if not weights.any():
        lines = f"; a line of {words} is WORD, tab, WEIGHT, and WORD one token" if words else ""
        raise UserError(f"No token would have a weight above 0, so none could be masked{lines}. Change the option.")
    maker.listed(weights).write(out)
    typer.echo(
        f"{out}: {len(weights):,} tokens, {int((weights == 0).sum()):,} with weight 0, others up to {weights.max():g}"
        + (f"; left out: {left_out:,} lines whose word is not one token" if left_out else "")
    )


def _read(file: Path) -> list[tuple[str, float]]:
    """Words with their weights, 1 by default."""
    from data_prep.common.reading import read_bytes

    lines = read_bytes(file, 1 << 30).decode("utf-8-sig", errors="replace").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    try:
        return [(row[0], float(row[1]) if len(row) > 1 else 1.0) for row in rows if row[0].strip()]
    except ValueError as error:
        raise UserError(f"{file} has a weight that is not a number ({error})") from None
