"""Measure the similarity of consecutive layers, and the information on input and target in each layer.

Voita, Sennrich and Titov, "The bottom-up evolution of representations in the Transformer", 2019, arXiv:1909.01380.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from data_prep.common.errors import UserError
from data_prep.common.files import check_writable
from data_prep.format import Dataset
from experiments.layers.layer_analysis import ModelMeasures, measure
from experiments.layers.layer_charts import draw_charts
from experiments.layers.position_sample import SampleSettings
from launchers.arguments import SeqLenOption, local, require_inputs
from launchers.display import CommandProgress, check_json_output, text_console, text_table, write_json_output

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WIDTH = 140  # columns of a table that is written to a file


@app.command()
def analyze_layers(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Hugging Face model folders or run folders")],
    data: Annotated[str, typer.Option(metavar="DIR", help="held-out data set: a folder or a URL")],
    out: Annotated[Path | None, typer.Option(parser=local, metavar="DIR", help="folder for two PNG charts")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", parser=local, metavar="FILE", help="JSON file for values and intervals")
    ] = None,
    positions: Annotated[
        int, typer.Option(min=200, help="sampled positions of each kind, at most; use more for wide models")
    ] = 8000,
    tokens: Annotated[int, typer.Option(min=2, help="measure the identity of the N most frequent tokens")] = 1000,
    clusters: Annotated[int, typer.Option(min=2, help="clusters of hidden states for the information estimate")] = 1500,
    seq_len: SeqLenOption = None,
    mask_rate: Annotated[float, typer.Option(min=0.01, max=0.9, help="share of tokens to predict")] = 0.15,
    shuffled: Annotated[
        str | None, typer.Option(metavar="DIR", help="also measure this data set, the same text with shuffled words")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="random seed of positions, masks and clusters")] = 0,
) -> None:
    """Measure the similarity of consecutive layers, and the information on input and target in each layer.

    Models with the same tokenizer can be compared: masked or causal, of any depth.

    Examples:

        python -m experiments.layers runs/demo --data data/demo/valid --out layers
        python -m experiments.layers models/mlm models/clm --data data/books/valid --out layers --json layers.json
        python -m experiments.layers models/mlm models/shuffled --data data/books/valid --shuffled data/shuffled
    """
    if clusters <= tokens:
        raise UserError(f"--clusters {clusters} is too low for --tokens {tokens}: set it higher than --tokens.")
    if clusters >= positions:
        raise UserError(
            f"--clusters {clusters} must be lower than --positions {positions}. Set fewer clusters or more positions."
        )
    if out:
        check_writable(out, inside=True)
    if as_json:
        check_json_output(as_json)
    require_inputs(models, [data, *([shuffled] if shuffled else [])])
    asked = SampleSettings(positions, tokens, clusters, 0, mask_rate, seed)
    texts = {"natural": Dataset(data)} | ({"shuffled words": Dataset(shuffled)} if shuffled else {})
    settings, results = measure(models, texts, asked, seq_len)
    found = []
    with CommandProgress() as line:
        for measured in results:
            found.append(measured)
            line.show(len(found), len(models) * len(texts), f"measured: {measured.model}")
    if as_json:
        write_json_output(as_json, _to_json(found, texts["natural"].location, settings))
    for measured in found:
        print_measures(measured)
    if out:
        for path in draw_charts(found, out):
            typer.echo(str(path))


def _to_json(found: list[ModelMeasures], data: str, settings: SampleSettings) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for one in found:
        values = asdict(one)
        models.setdefault(values.pop("model"), {})[values.pop("text")] = values
    return {"data": data, "settings": asdict(settings), "models": models}


def print_measures(found: ModelMeasures) -> None:
    """Print the tables of a model."""
    console = text_console(_WIDTH)
    head = f"\n{found.model}, {found.objective}, {found.layers} layers of {found.hidden}, {found.text} text"
    console.print(Text(head, style="bold"))
    if found.similarities:
        columns = {f"{one.measure}, {one.kind}\n({one.positions:,})": one.between for one in found.similarities}
        table = _table("between layers", [f"{layer} and {layer + 1}" for layer in range(found.layers)], columns)
        chance = (f"{sum(one.chance) / len(one.chance):.3f}" for one in found.similarities)
        table.add_row("expected by chance (mean)", *chance, style="dim")
        console.print(table)
    else:
        console.print("Similarity is not shown: too few positions. Use more text, or another --seq-len.")
    if found.information:
        columns = {f"{one.of}, {one.kind}\n({one.positions:,})": one.at for one in found.information}
        console.print(_table("information at layer", [str(layer) for layer in range(found.layers + 1)], columns))
    else:
        console.print("Information is not shown: too few positions. Use fewer clusters, more positions or more text.")


def _table(title: str, rows: list[str], columns: dict[str, list[Any]]) -> Table:
    cells = [(row, *map(str, estimates)) for row, *estimates in zip(rows, *columns.values(), strict=True)]
    return text_table((title, *columns), cells)


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        sys.exit(f"error: {error}")
