"""`maskwright evaluate`: held-out loss and minimal pairs of finished models."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from data_prep.errors import UserError
from data_prep.tokenizer import printable
from launchers.commands.arguments import check_inputs, local
from launchers.display import CommandProgress, check_json_output, tables, write_json_output
from pretrain.config.error_text import percent

if TYPE_CHECKING:
    from pretrain.tracking import Target

_ROWS, _MASK_RATE = 1000, 0.15
_HELD_OUT = {
    "by_frequency": "by how often the token is in the counted text",
    "by_word_class": "by the place of the token in its word",
    "by_length": "by tokens of the document, or piece of one",
}
_MEASURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "held_out.loss": ("held-out loss, nats", "{:+.4f}".format),
    "held_out.masked_accuracy": ("masked accuracy, points", lambda value: f"{100 * value:+.2f}"),
    "pairs.accuracy": ("accuracy on pairs, points", lambda value: f"{100 * value:+.2f}"),
}


def evaluate(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="[MODEL]...", help="Hugging Face folders, or runs (their newest)")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DATASET", help="held-out text, a folder or a URL")] = None,
    pairs: Annotated[str | None, typer.Option(metavar="FILE", help="minimal pairs, such as BLiMP's jsonl")] = None,
    pll: Annotated[
        Literal["original", "within-word"] | None,
        typer.Option(help="what is masked to score a token of a sentence; original by default"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="pairs of each UID, evenly chosen; all by default")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help=f"rows of held-out text; {_ROWS:,} by default")] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=8, help="slots of a row; 128, or less where a model takes no more")
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(help=f"share of tokens that are predicted; {_MASK_RATE} by default")
    ] = None,
    strategy: Annotated[
        Literal["token", "whole_word", "span", "ngram"] | None,
        typer.Option(help="what is masked as a whole; token by default"),
    ] = None,
    counts: Annotated[
        str | None, typer.Option(metavar="DATASET", help="whose tokens are counted, such as the training text")
    ] = None,
    baseline: Annotated[
        Literal["unigram"] | None, typer.Option(help="a model of the token counts of --counts alone")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--json", parser=local, metavar="FILE", help="write all results there")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(help="MLflow that gets the results; none sends nothing  [default: MLFLOW_TRACKING_URI, if set]"),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="of MLflow  [default: that of the run that made the models, else maskwright]")
    ] = None,
) -> None:
    """Evaluate finished models: loss on held-out text, and which sentence of minimal pairs they find likelier.

    Masks are fixed, so all models are asked for the same tokens. Every model is compared with the first. With --json,
    scores of sentences are kept while they are computed: the same command goes on after Ctrl-C or a kill.

    Examples:

        maskwright evaluate runs/books --data data/books/valid --json books.json

        maskwright evaluate runs/token runs/span --data data/books/valid --pairs blimp.jsonl.zst

        maskwright evaluate runs/books --baseline unigram --counts data/books/train --pairs blimp.jsonl.zst --limit 50

        maskwright evaluate runs/books --data data/books/valid --uri sqlite:///mlflow.db
    """
    names = tuple(str(path) for path in models or ())
    if not names and not baseline:
        raise UserError("give a model to evaluate, a Hugging Face folder or a run; or --baseline unigram")
    if len(set(names)) < len(names):
        raise UserError(f"{next(name for name in names if names.count(name) > 1)} is given twice")
    if baseline in names:
        raise UserError(f"{baseline} is also the name of the baseline; give that model by its full path")
    if data is None and pairs is None:
        raise UserError("give --data, a held-out data set, or --pairs, a file of minimal pairs, or both")
    if baseline and counts is None:
        raise UserError("--baseline unigram needs --counts, the data set whose tokens it counts: the training text")
    if counts and data is None and not baseline:
        raise UserError("--counts is for --data and for --baseline unigram; give one of them, or leave it out")
    _refuse_unread("--pairs", pairs, {"--limit": limit, "--pll": pll})
    text_options = {"--rows": rows, "--seq-len": seq_len, "--mask-rate": mask_rate, "--strategy": strategy}
    _refuse_unread("--data", data, text_options)
    if mask_rate is not None and not 0 < mask_rate < 1:
        hint = percent(mask_rate) or "Write for example 0.15."
        raise UserError(f"--mask-rate must be more than 0 and less than 1, not {mask_rate:g}. {hint}")
    if out:
        check_json_output(out)
    check_inputs(names, (data, counts), (pairs,))
    target = _target(uri, experiment, models or ())

    from evaluation.likelihood import EvaluationRequest, send
    from evaluation.likelihood import evaluate as run

    rate = _MASK_RATE if mask_rate is None else mask_rate
    held_out = rows or _ROWS, seq_len, rate, strategy or "token"
    task = EvaluationRequest(names, bool(baseline), data, counts, *held_out, pairs, pll or "original", limit)
    keep = out.with_name(f"{out.name}.scores") if out and pairs else None
    try:
        with CommandProgress() as line:
            found = run(task, line.show, keep)
    except KeyboardInterrupt:
        if keep and keep.exists():
            typer.echo(f"{keep} has the scores so far; the same command goes on", err=True)
        raise
    if out:
        write_json_output(out, found)
        if keep:
            keep.unlink(missing_ok=True)  # which has none of token counts
    if target:
        send(found, target)
    print_results(found)
    if out:
        typer.echo(f"all figures: {out}")


def _target(uri: str | None, experiment: str | None, models: Sequence[Path]) -> "Target | None":
    """The MLflow that gets the figures; None if neither an option nor the environment names one."""
    if not (uri or experiment or os.environ.get("MLFLOW_TRACKING_URI")):
        return None
    from pretrain.tracking import command_target

    return command_target(uri, experiment, models)


def _refuse_unread(reader: str, given: str | None, options: Mapping[str, object]) -> None:
    """Raise UserError for the first of the options that are given without the one that would make use of them."""
    unread = [name for name, value in options.items() if value is not None]
    if given is None and unread:
        raise UserError(f"{unread[0]} is for {reader}; give that too, or leave it out")


def print_results(found: dict[str, Any]) -> None:
    """Print the results of all models, and their differences."""
    console, models = tables.output(), found["models"]
    if held_out := {name: results["held_out"] for name, results in models.items() if "held_out" in results}:
        _print_held_out(console, held_out, found["settings"]["held_out"])
    if pairs := {name: results["pairs"] for name, results in models.items() if "pairs" in results}:
        _print_pairs(console, pairs)
    if found["comparisons"]:
        console.print(_comparisons(found["comparisons"]))


def _print_held_out(console: Console, results: dict[str, Any], settings: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{one['loss']:.4f}",
            f"{one['perplexity']:,.2f}",
            f"{one['masked_accuracy']:.2%}",
            f"{one['predictions']:,}",
            f"{one['rows']:,}",
        )
        for name, one in results.items()
    ]
    columns = ("model", "loss (nats)", "perplexity", "masked accuracy", "predictions", "rows")
    masks = f"{settings['strategy']} masks at {settings['rate']:g}, rows of {settings['seq_len']}"
    console.print(tables.table(columns, rows, f"Held-out text: {settings['data']}, {masks}"))
    first = next(iter(results.values()))
    for part, title in _HELD_OUT.items():
        rows = [
            (group, f"{of_group['predictions']:,}", *(f"{one[part][group]['loss']:.4f}" for one in results.values()))
            for group, of_group in first[part].items()
        ]
        console.print(tables.table(("", "predictions", *results), rows, f"Loss {title}"))


def _print_pairs(console: Console, results: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [
        (
            name,
            one["score"],
            f"{one['accuracy']:.2%}",
            _interval(one["interval"], "{:.2%}".format),
            f"{one['pairs']:,}",
            f"{one['ties']:,}",
        )
        for name, one in results.items()
    ]
    columns = ("model", "score", "accuracy", "95% interval", "pairs", "ties")
    console.print(tables.table(columns, rows, "Minimal pairs"))
    groups = next(iter(results.values()))["by"]
    for kind in dict.fromkeys(group.partition(":")[0] for group in groups):
        of_kind = {group: figures for group, figures in groups.items() if group.startswith(f"{kind}:")}
        rows = [
            (
                printable(group.partition(":")[2]),
                f"{figures['pairs']:,}",
                *(f"{one['by'][group]['accuracy']:.1%}" for one in results.values()),
            )
            for group, figures in of_kind.items()
        ]
        console.print(tables.table((kind, "pairs", *results), rows, f"Accuracy by {kind}"))


def _comparisons(comparisons: list[dict[str, Any]]) -> Table:
    rows = []
    for one in comparisons:
        name, form = _MEASURES[one["measure"]]
        interval = _interval(one["interval"], form) if one["interval"] else "too few to say"
        rows.append((one["model"], name, form(one["difference"]), interval))
    title = f"Difference from {comparisons[0]['with']}, with 95% intervals of a paired bootstrap"
    return tables.table(("model", "measure", "difference", "95% interval"), rows, title)


def _interval(bounds: list[float], form: Callable[[float], str]) -> str:
    return f"{form(bounds[0])} to {form(bounds[1])}"
