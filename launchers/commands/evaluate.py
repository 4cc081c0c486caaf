"""`maskwright evaluate`: what finished models know."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from data_prep.errors import UserError
from data_prep.files import write_json
from launchers.progress import ProgressLine

_ROWS = 1000


def evaluate(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="[MODEL]...", help="Hugging Face folders, or runs (their newest)")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DATASET", help="held-out text, a folder or a URL")] = None,
    pairs: Annotated[str | None, typer.Option(metavar="FILE", help="minimal pairs, such as BLiMP's jsonl")] = None,
    pll: Annotated[
        Literal["original", "within-word"], typer.Option(help="what is masked to score a token of a sentence")
    ] = "original",
    limit: Annotated[int | None, typer.Option(min=1, help="pairs of each UID, evenly chosen; all by default")] = None,
    rows: Annotated[int, typer.Option(min=1, help="rows of held-out text")] = _ROWS,
    seq_len: Annotated[
        int | None, typer.Option(min=8, help="slots of a row; 128, or less where a model takes no more")
    ] = None,
    mask_rate: Annotated[float, typer.Option(help="share of tokens that are predicted")] = 0.15,
    strategy: Annotated[
        Literal["token", "whole_word", "span", "ngram"], typer.Option(help="what is masked as a whole")
    ] = "token",
    counts: Annotated[
        str | None, typer.Option(metavar="DATASET", help="whose tokens are counted, such as the training text")
    ] = None,
    baseline: Annotated[
        Literal["unigram"] | None, typer.Option(help="a model of the token counts of --counts alone")
    ] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write all results there")] = None,
) -> None:
    """Evaluate finished models: loss on held-out text, and which sentence of minimal pairs they find likelier.

    Masks are fixed, so all models are asked for the same tokens. Every model is compared with the first.

    Examples:

        maskwright evaluate runs/books --data data/books/valid --json books.json

        maskwright evaluate runs/token runs/span --data data/books/valid --pairs blimp.jsonl.zst

        maskwright evaluate runs/books --baseline unigram --counts data/books/train --pairs blimp.jsonl.zst --limit 50
    """
    names = tuple(str(path) for path in models or ())
    if not names and not baseline:
        raise UserError("give a model to evaluate, a Hugging Face folder or a run; or --baseline unigram")
    if len(set(names)) < len(names):
        raise UserError(f"{next(name for name in names if names.count(name) > 1)} is given twice")
    if data is None and pairs is None:
        raise UserError("give --data, a held-out data set, or --pairs, a file of minimal pairs, or both")
    if baseline and counts is None:
        raise UserError("--baseline unigram needs --counts, the data set whose tokens it counts: the training text")
    if counts and data is None and not baseline:
        raise UserError("--counts is for --data and for --baseline unigram; give one of them, or leave it out")
    if not 0 < mask_rate < 1:
        raise UserError(f"--mask-rate is {mask_rate:g}; it must be above 0 and below 1")
    if out and not out.resolve().parent.is_dir():
        raise UserError(f"there is no folder {out.resolve().parent} to write {out.name} to")

    from launchers.evaluation_tables import print_results
    from pretrain.evaluation.evaluate import Task
    from pretrain.evaluation.evaluate import evaluate as run

    task = Task(names, bool(baseline), data, counts, rows, seq_len, mask_rate, strategy, pairs, pll, limit)
    with ProgressLine() as line:
        found = run(task, line.show)
    print_results(found)
    if out:
        write_json(out, found)
        typer.echo(f"all figures: {out}")
