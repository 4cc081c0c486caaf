"""`maskwright evaluate`: held-out loss, minimal-pair accuracy, and fine-tuning on a suite of tasks."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from data_prep.common.errors import UserError, printable
from launchers.arguments import (
    ExperimentOption,
    JsonFile,
    ModelsArgument,
    PairsOption,
    SeqLenOption,
    given_options,
    refuse_unread,
    require_inputs,
)
from launchers.display import (
    CommandProgress,
    check_json_output,
    interruptible,
    text_console,
    text_table,
    write_json_output,
)
from pretrain.config_files import percent

if TYPE_CHECKING:
    from evaluation.finetuning import Entrant, FinetuneResults
    from pretrain.tracking import Target

_MEASURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "held_out.loss": ("held-out loss, nats", "{:+.4f}".format),
    "held_out.masked_accuracy": ("masked accuracy, points", lambda value: f"{100 * value:+.2f}"),
    "pairs.accuracy": ("accuracy on pairs, points", lambda value: f"{100 * value:+.2f}"),
}


def evaluate(
    context: typer.Context,
    models: ModelsArgument = None,
    data: Annotated[str | None, typer.Option(metavar="DATASET", help="held-out data set: a folder or a URL")] = None,
    pairs: PairsOption = None,
    limit: Annotated[int | None, typer.Option(min=1, help="pairs per UID, evenly spaced; all by default")] = None,
    rows: Annotated[int, typer.Option(min=1, help="rows of held-out text")] = 1000,
    seq_len: SeqLenOption = None,
    mask_rate: Annotated[float, typer.Option(help="share of tokens to predict")] = 0.15,
    unigram: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET", help="also evaluate a model that knows only this data set's token counts, as a baseline"
        ),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="fine-tune on the tasks of a YAML file, see configs/suites/; needs --json"),
    ] = None,
    out: JsonFile = None,
    uri: Annotated[
        str | None, typer.Option(help="MLflow address for the results, or none  [default: MLFLOW_TRACKING_URI, if set]")
    ] = None,
    experiment: ExperimentOption = None,
) -> None:
    """Evaluate trained models: loss on held-out text, accuracy on minimal pairs, or fine-tuning on a suite of tasks.

    All models predict the same masked tokens. Every model is compared with the first one. With --json, the scores of
    sentences and the results of fine-tunings are kept: after Ctrl-C or a kill, run the same command to resume.

    Examples:

        maskwright evaluate runs/demo --data data/demo/valid --json demo.json
        maskwright evaluate runs/token runs/span --data data/books/valid --pairs blimp.jsonl.zst
        maskwright evaluate runs/demo hub:google-bert/bert-base-uncased --pairs blimp.jsonl.zst
        maskwright evaluate runs/clm --pairs evaluation_data/full_eval/supplement_filtered
        maskwright evaluate runs/books --unigram data/books/train --pairs blimp.jsonl.zst --limit 50
        maskwright evaluate runs/books --data data/books/valid --uri sqlite:///mlflow.db
        maskwright evaluate runs/books runs/other --suite configs/suites/glue.yaml --json glue.json
    """
    if suite:
        _evaluate_suite(context, suite, models or (), out, uri, experiment)
        return
    if not models and not unigram:
        raise UserError("No model to evaluate. Name a Hugging Face model folder or a run, or add --unigram DATASET.")
    if unigram and Path("unigram") in (models or ()):
        raise UserError("unigram is also the name of the baseline. Name the model by its full path.")
    if data is None and pairs is None:
        raise UserError(
            "Nothing to evaluate on. Add --data (a held-out data set), --pairs (a file of minimal pairs), or --suite."
        )
    if pairs is None:
        refuse_unread(context, "--pairs", "limit")
    if data is None:
        refuse_unread(context, "--data", "rows", "seq_len", "mask_rate")
    if not 0 < mask_rate < 1:
        hint = percent(mask_rate) or "Write for example 0.15."
        raise UserError(f"--mask-rate must be more than 0 and less than 1, not {mask_rate:g}. {hint}")
    if out:
        check_json_output(out)
    from data_prep.storage import json_line_files

    paths = require_inputs(models or (), (data, unigram), json_line_files(pairs) if pairs else ())

    with CommandProgress("loading libraries"):
        from evaluation.likelihood import EvaluationRequest, send_evaluation
        from evaluation.likelihood import evaluate as run

    target = _target(uri, experiment, paths)
    task = EvaluationRequest(tuple(map(str, paths)), data, unigram, rows, seq_len, mask_rate, pairs, limit)
    kept = out.with_name(f"{out.name}.scores") if out and pairs else None
    with interruptible(resumes=kept is not None), CommandProgress("loading the models") as line:
        results = run(task, line.show, kept)
    if out:
        write_json_output(out, results)
    if kept:
        kept.unlink(missing_ok=True)  # another evaluation may write the same file
    if target:
        send_evaluation(results, target)
    print_results(results)
    if out:
        typer.echo(f"all figures: {out}")


def _target(uri: str | None, experiment: str | None, models: Sequence[Path]) -> "Target | None":
    """The MLflow that gets the results; None if no option and no variable names one."""
    from pretrain.tracking import Target

    tracked = uri or experiment or os.environ.get("MLFLOW_TRACKING_URI")
    return Target.of_command(uri, experiment, models) if tracked else None


def _evaluate_suite(
    context: typer.Context,
    file: Path,
    models: Sequence[Path],
    out: Path | None,
    uri: str | None,
    experiment: str | None,
) -> None:
    """Fine-tune models on the tasks of a suite, and print one table."""
    read = ("models", "suite", "out", "uri", "experiment")
    for option in given_options(context, (name for name in context.params if name not in read)):
        raise UserError(f"{option} is not used with --suite. Remove {option}, or --suite.")
    if not models or not out:
        raise UserError("--suite takes models, and keeps its results in a file. Name models, and add --json FILE.")
    check_json_output(out)
    paths = require_inputs(models)
    with CommandProgress("loading libraries"):
        from evaluation.finetuning import SuiteRun, entrants_of, read_suite
    suite, target = read_suite(file), _target(uri, experiment, paths)

    def send(title: str, results: "FinetuneResults", entrant: "Entrant") -> None:
        if target:
            results.send(target, title, entrant.name, entrant.model if entrant.random else None)

    with interruptible(resumes=True), CommandProgress("reading the models and the examples") as line:
        folder, say = out.with_name(f"{out.name}.tasks"), lambda text: line.say(text, err=True)
        run = SuiteRun(suite.tasks, entrants_of(paths), folder, line.show, say, send)
        run.check(file)
        for tables in run.results():
            write_json_output(out, {"suite": str(file), "tasks": tables})
    text_console().print(_suite_table(tables))
    typer.echo(f"all figures: {out}; each fine-tuning: {folder}")


def _suite_table(tables: dict[str, Any]) -> Table:
    """One table of all tasks: the models, random weights, and the baseline without a model."""
    lines = []
    for name, table in tables.items():
        title = f"{name} ({table['metric']})"
        for model, row in sorted(table["models"].items(), key=lambda item: "above_random" not in item[1]):
            interval = " to ".join(f"{bound:.4f}" for bound in row["interval"] or ())
            above = {True: "yes", False: "no"}.get(row.get("above_random"), "")
            lines.append((title, model, f"{row['mean']:.4f}", interval, f"{row['lr']:g}", str(row["epochs"]), above))
        baseline = table["baseline"]
        lines.append((title, baseline["name"], f"{baseline[table['metric']]:.4f}", "", "", "", ""))
    columns = ("task", "model", "mean", "95% interval", "lr", "epochs", "above random")
    return text_table(columns, lines, "Fine-tuning, with 95% intervals over the seeds", texts=("model",))


def print_results(values: dict[str, Any]) -> None:
    """Print the results of all models, and their differences."""
    console, models = text_console(), values["models"]
    if held_out := {name: results["held_out"] for name, results in models.items() if "held_out" in results}:
        _print_held_out(console, held_out, values["settings"]["held_out"])
    if pairs := {name: results["pairs"] for name, results in models.items() if "pairs" in results}:
        _print_pairs(console, pairs)
    if values["comparisons"]:
        console.print(_comparisons(values["comparisons"]))


def _print_held_out(console: Console, results: dict[str, Any], settings: dict[str, Any]) -> None:
    formats = {
        "loss (nats)": "{loss:.4f}",
        "perplexity": "{perplexity:,.2f}",
        "masked accuracy": "{masked_accuracy:.2%}",
        "predictions": "{predictions:,}",
        "rows": "{rows:,}",
    }
    masks = f"masks at {settings['rate']:g}, rows of {settings['seq_len']}"
    _print_models(console, f"Held-out text: {settings['data']}, {masks}", formats, results)


def _print_pairs(console: Console, results: dict[str, Any]) -> None:
    formats = {
        "score": "{score}",
        "accuracy": "{accuracy:.2%}",
        "BabyLM's mean": "{babylm:.2%}",
        "95% interval": "{interval[0]:.2%} to {interval[1]:.2%}",
        "pairs": "{pairs:,}",
        "ties": "{ties:,}",
    }
    _print_models(console, "Minimal pairs", formats, results)
    rows = [
        (
            printable(group),
            f"{first['pairs']:,}",
            *(f"{of_model['by'][group]['accuracy']:.1%}" for of_model in results.values()),
        )
        for group, first in next(iter(results.values()))["by"].items()
    ]
    if rows:
        console.print(text_table(("", "pairs", *results), rows, "Accuracy by group"))


def _print_models(console: Console, title: str, formats: dict[str, str], results: dict[str, Any]) -> None:
    rows = [(name, *(form.format(**of_model) for form in formats.values())) for name, of_model in results.items()]
    console.print(text_table(("model", *formats), rows, title))


def _comparisons(comparisons: list[dict[str, Any]]) -> Table:
    rows = []
    for comparison in comparisons:
        name, form = _MEASURES[comparison["measure"]]
        interval = " to ".join(map(form, comparison["interval"])) if comparison["interval"] else "too few"
        rows.append((comparison["model"], name, form(comparison["difference"]), interval))
    title = f"Difference from {comparisons[0]['with']}, with 95% intervals of a paired bootstrap"
    return text_table(("model", "measure", "difference", "95% interval"), rows, title)
