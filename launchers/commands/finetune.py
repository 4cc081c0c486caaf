"""`maskwright finetune`: fine-tune a model with several seeds."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from data_prep.common.errors import UserError
from launchers.arguments import ExperimentOption, ModelArgument, local, require_inputs
from launchers.display import CommandProgress, interruptible, text_console, text_table

if TYPE_CHECKING:
    from evaluation.finetuning import FinetuneResults


TaskName = Literal["classification", "regression", "tokens", "repair"]


def _above_zero(lr: float) -> float:
    """Check --lr. A callback, so that a study which parses these options first refuses the same values."""
    if not 0 < lr < math.inf:
        raise UserError(f"--lr must be more than 0 and finite, not {lr:g}. Write for example 5e-5.")
    return lr


def _share(dropout: float | None) -> float | None:
    if dropout is not None and not 0 <= dropout < 1:
        raise UserError(f"--dropout must be 0 or more and less than 1, not {dropout:g}. Write for example 0.1.")
    return dropout


def finetune(
    model: ModelArgument,
    task: Annotated[TaskName, typer.Option(help="task to learn")],
    train: Annotated[
        str, typer.Option(metavar="FILE", help="training examples: a file (.gz and .zst too), a URL or hub:DATASET")
    ],
    valid: Annotated[str, typer.Option(metavar="FILE", help="held-out examples")],
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B[,C]",
            help="column names, or numbers if there is no header. classification: text, optional second text, label. "
            "regression: the same with a score. tokens: word, label. repair: wrong, right",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds, from 1 to N")] = 3,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    lr: Annotated[float, typer.Option(callback=_above_zero, help="peak learning rate")] = 5e-5,
    batch_size: Annotated[int, typer.Option(min=1, help="examples per step")] = 32,
    max_length: Annotated[int, typer.Option(min=8, help="tokens per text")] = 128,
    dropout: Annotated[
        float | None, typer.Option(callback=_share, help="dropout of encoder and head  [default: the model's own]")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="use N training examples, evenly spaced")] = None,
    limit_valid: Annotated[int | None, typer.Option(min=1, help="use N held-out examples, evenly spaced")] = None,
    out: Annotated[
        Path | None, typer.Option(parser=local, metavar="DIR", help="output folder for the model of the best seed")
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option(
            "--json", parser=local, metavar="FILE", help="write the results to a JSON file, and resume from it"
        ),
    ] = None,
    uri: Annotated[str | None, typer.Option(help="MLflow address, or none  [default: sqlite:///mlflow.db]")] = None,
    experiment: ExperimentOption = None,
) -> None:
    """Fine-tune a model on a task with several seeds, and report its metrics.

    With `--json`, the result of each seed is saved when it finishes. Run the same command to train the missing seeds.

    Examples; the first one only shows that it works, since both files are the same text:

        maskwright finetune runs/demo --task classification --columns text,author --seeds 1 \\
            --train configs/demo/books.jsonl.zst --valid configs/demo/books.jsonl.zst
        maskwright finetune runs/demo --task tokens --train train.conll --valid dev.conll --seeds 5 --json ner.json
        maskwright finetune models/bert --task repair --train pairs.jsonl --valid dev.jsonl --columns wrong,right
    """
    [model] = require_inputs([model], files=(train, valid))
    with CommandProgress("loading libraries"):
        from evaluation.finetuning import FinetuneSettings, Finetuning
        from pretrain.tracking import Target

    settings = FinetuneSettings(
        task=task,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        max_length=max_length,
        dropout=dropout,
        columns=tuple(columns.split(",")) if columns else (),
        limit=limit,
        limit_valid=limit_valid,
    )
    target = Target.of_command(uri, experiment, [model])
    with CommandProgress("reading the model and the examples"):
        finetuning = Finetuning(model, settings, {"train": train, "valid": valid})
        results = finetuning.open_results(json_path, out)
    for note in finetuning.task.notes:
        typer.echo(note, err=True)
    name = f"{task} {model.name}"
    results.send(target, name, str(model), model)
    with interruptible(resumes=json_path is not None), CommandProgress("loading the model") as line:
        for result in finetuning.train_seeds(results, range(1, seeds + 1), line.show):
            results.send(target, name, str(model), model)
            score = f"{results.metric} {result.metrics[results.metric]:.4f}"
            line.say(f"seed {result.seed}: {score}, {result.seconds:.0f} s", err=True)
    _print(results, finetuning.task.without_model)


def _print(results: "FinetuneResults", without_model: str) -> None:
    rows = []
    for name in sorted(results.baseline, key=lambda name: name != results.metric):
        figures = [results.mean(name), results.deviation(name), results.baseline[name]]
        rows.append((name, *("" if value is None else f"{value:.4f}" for value in figures)))
    text_console().print(text_table(("metric", "mean", "sd", "baseline"), rows))
    typer.echo(f"seeds: {len(results.results)}; baseline: {without_model}")
