"""`maskwright prep collocations`: write the list of collocations for PMI masking."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.common.errors import printable
from launchers.arguments import DataSet, check_new_file, local
from launchers.display import CommandProgress

if TYPE_CHECKING:
    from data_prep.inspection import CollocationCounts

EXAMPLES = 3  # n-grams printed from the beginning and from the end of the list, for each n


def prep_collocations(
    location: DataSet,
    out: Annotated[Path, typer.Option(parser=local, metavar="FILE", help="list to write, a parquet file")],
    size: Annotated[
        int | None,
        typer.Option(min=8, help="largest number of n-grams; by default enough to cover half of the words"),
    ] = None,
    min_count: Annotated[int, typer.Option(min=2, help="leave out n-grams with a lower count in the sample")] = 10,
    max_words: Annotated[int, typer.Option(min=2, max=8, help="largest n, in words")] = 5,
    tokens: Annotated[
        int, typer.Option(min=1, help="approximate sample size in tokens, from blocks spread evenly over the data set")
    ] = 100_000_000,
) -> None:
    """List word n-grams with high pointwise mutual information (PMI), for PMI masking.

    Prints for each n the number of candidates and of listed n-grams, the lowest PMI, and examples from both ends.

    Example:

        maskwright prep collocations data/demo/train --out data/demo/collocations.parquet
    """
    from data_prep.format import Dataset
    from data_prep.inspection import find_collocations

    check_new_file(out)
    dataset = Dataset(location)
    with CommandProgress() as line:
        found = find_collocations(dataset, size, min_count, max_words, tokens, lambda s, n, of: line.show(n, of, s))
    _tell(found, found.write(dataset, min_count, out), out)


def _tell(found: "CollocationCounts", texts: list[str | None], out: Path) -> None:
    begin = 0
    for n, candidates in enumerate(found.candidates, 2):
        end = begin + int((found.listed.n_words == n).sum())
        line = f"{n} words: {end - begin:,} of {candidates:,}"
        if end > begin:
            shown = dict.fromkeys([*range(begin, end)[:EXAMPLES], *range(begin, end)[-EXAMPLES:]])
            said = [f'"{printable(text)}" {found.pmi[at]:.1f}' for at in shown if (text := texts[at]) is not None]
            line += f", PMI from {found.pmi[end - 1]:.1f}" + (": " if said else "") + ", ".join(said)
        typer.echo(line)
        begin = end
    typer.echo(
        f"{out}: {begin:,} collocations, which cover {found.covered:.0%} of the {found.words:,} words in a sample of "
        f"{found.tokens:,} tokens"
    )
