"""`maskwright merge`: average checkpoints into a Hugging Face model."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from data_prep.common.errors import UserError
from data_prep.common.files import check_writable, free_folder
from data_prep.common.urls import require_trust
from launchers.arguments import JsonFile, local, refuse_unread
from launchers.display import CommandProgress, check_json_output, text_console, text_table, write_json_output
from pretrain.config import View
from pretrain.config_files import load_config
from pretrain.run import RunFolder


def merge(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="RUN@A..B: checkpoints of a run from step A to B; or folders of checkpoints or exports, oldest first",
        ),
    ],
    out: Annotated[Path, typer.Option(parser=local, metavar="DIR", help="output folder")],
    weights: Annotated[
        Literal["uniform", "ema", "linear-decay"],
        typer.Option(help="equal; falling with age; or as a linear decay of the learning rate"),
    ] = "uniform",
    decay: Annotated[float, typer.Option(min=0, max=1, help="with ema: a weight as a share of the next one")] = 0.9,
    view: Annotated[View | None, typer.Option(help="of a mixture: as in maskwright export")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATASET", help="held-out data set, or none  [default: data.valid of the run]")
    ] = None,
    report: JsonFile = None,
) -> None:
    """Average the weights of checkpoints, and compare the result on held-out text.

    After a phase with a constant learning rate, this replaces a decay of the learning rate.

    Examples:

        maskwright merge runs/demo@800..1000 --out models/demo
        maskwright merge runs/books@8000..10000 --weights linear-decay --out models/books --json merge.json
        maskwright merge models/a models/b models/c --weights ema --decay 0.8 --out models/abc --data data/books/valid
    """
    if weights != "ema":
        refuse_unread(context, "--weights ema", "decay")
    from pretrain.export import merge_parts, merge_weights

    parts = [part for name in models for part in merge_parts(name, view)]
    folders = [part.folder for part in parts]
    if len(parts) < 2:
        raise UserError(f"A merge needs two models, and {models[0]} is one. Name more, or RUN@A..B.")
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise UserError(f"{twice[0]} is named twice. Name each model once.")
    free_folder(out)
    check_writable(out)
    if report:
        check_json_output(report)
    run = next((part.run for part in parts if part.run), None)
    held_out = _held_out(data, run)
    shares = merge_weights(weights, [part.step for part in parts], decay)

    with CommandProgress("loading libraries"):
        from data_prep.format import Dataset
        from evaluation.likelihood import EvaluationRequest, evaluate
        from pretrain.export import check_vocabulary, load_tokenizer, merge_models

    kind = f"ema, decay {decay:g}" if weights == "ema" else weights
    with CommandProgress() as line:
        for done, part in enumerate(parts):
            line.show(done, len(parts), f"exporting {part.folder}")
            part.export()
        if held_out:
            vocabulary = load_tokenizer(folders[0]).backend_tokenizer.get_vocab(with_added_tokens=True)
            check_vocabulary(str(folders[0]), vocabulary, Dataset(held_out))
        merge_models(folders, shares, f"a merge of {len(parts)} models ({kind})", out, line.show)
        names = tuple(str(folder) for folder in (out, *folders))
        evaluation = evaluate(EvaluationRequest(names, data=held_out), line.show) if held_out else None
    rows = [
        {"model": str(part.folder), "step": part.step, "weight": share}
        for part, share in zip(parts, shares, strict=True)
    ]
    if report:
        write_json_output(report, {"out": str(out), "weights": kind, "models": rows, "evaluation": evaluation})
    _print(str(out), kind, rows, evaluation)


def _held_out(data: str | None, run: Path | None) -> str | None:
    """The location of the held-out data set; None if the user wants none, the run names none, or it is missing."""
    from data_prep.format import Dataset

    location = data or (load_config(RunFolder(run).config).data.valid if run else None)
    if location in (None, "none"):
        return None
    try:
        if not data:
            require_trust([location], run, "Name it with --data")
        Dataset(location)
    except UserError as error:
        if data:
            raise
        print(f"warning: the models are not evaluated: {error}", file=sys.stderr)
        return None
    return location


def _print(out: str, kind: str, rows: list[dict[str, Any]], evaluation: dict[str, Any] | None) -> None:
    columns, title = ["model", "weight"], f"Weights: {kind}"
    cells = {out: [out, "merge"]} | {row["model"]: [row["model"], f"{row['weight']:.4f}"] for row in rows}
    if evaluation:
        columns += ["held-out loss", "minus the merge", "95% interval"]
        title += f"; held-out text: {evaluation['settings']['held_out']['data']}"
        for name, results in evaluation["models"].items():
            cells[name].append(f"{results['held_out']['loss']:.4f}")
        for comparison in evaluation["comparisons"]:
            if comparison["measure"] == "held_out.loss":
                interval = " to ".join(f"{end:+.4f}" for end in comparison["interval"] or ())
                cells[comparison["model"]] += [f"{comparison['difference']:+.4f}", interval or "too few rows"]
        cells[out] += ["", ""]
    text_console().print(text_table(columns, cells.values(), title))
