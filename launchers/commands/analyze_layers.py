"""`maskwright analyze layers`: how representations change from layer to layer."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from data_prep.errors import UserError
from launchers.commands.arguments import check_inputs, local
from launchers.display import CommandProgress, check_json_output, tables, write_json_output

if TYPE_CHECKING:
    from evaluation.layers import Estimate, Information, ModelMeasures, Similarity
    from evaluation.layers.position_sample import SampleSettings

_WIDTH = 140  # of the tables in a file


def analyze_layers(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Hugging Face folders or runs")],
    data: Annotated[str, typer.Option(metavar="DIR", help="a held-out data set, a folder or a URL")],
    out: Annotated[Path | None, typer.Option(parser=local, metavar="DIR", help="a folder for two pictures")] = None,
    as_json: Annotated[
        Path | None,
        typer.Option("--json", parser=local, metavar="FILE", help="write all figures, with intervals, to a file"),
    ] = None,
    positions: Annotated[int, typer.Option(min=200, help="the most of a kind; more for wide models")] = 4000,
    tokens: Annotated[int, typer.Option(min=2, help="ask for the identity of so many, the most frequent ones")] = 100,
    clusters: Annotated[int, typer.Option(min=2, help="of states, to count information with")] = 300,
    seq_len: Annotated[
        int | None, typer.Option(min=8, help="tokens a row; by default 128, or what the models take")
    ] = None,
    mask_rate: Annotated[float, typer.Option(min=0.01, max=0.9, help="share of tokens that are predicted")] = 0.15,
    shuffled_ngrams: Annotated[
        int, typer.Option(min=0, help="n: look at text with shuffled n-grams of words, too; see data.shuffled_ngrams")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="of positions, masks and clusters")] = 0,
) -> None:
    """Show how alike consecutive layers are, and what is left of input and target in each.

    Masked and causal models of one tokenizer compare, whatever their depth.

    Examples:

        maskwright analyze layers runs/books --data data/books/valid --out layers

        maskwright analyze layers models/mlm models/clm --data data/books/valid --out layers --json layers.json

        maskwright analyze layers models/mlm models/shuffled --data data/books/valid --shuffled-ngrams 1
    """
    from data_prep.files import check_writable, refuse_file
    from data_prep.format import Dataset

    if clusters <= tokens:
        raise UserError(f"--clusters {clusters} cannot tell {tokens} tokens apart; give more than --tokens")
    if clusters >= positions:
        raise UserError(
            f"--clusters {clusters} of --positions {positions}: each position would be a cluster of its own; "
            "give fewer clusters or more positions"
        )
    if out:
        refuse_file(out)
        check_writable(out)
    if as_json:
        check_json_output(as_json)
    if len(set(models)) < len(models):
        twice = next(name for name in models if models.count(name) > 1)
        raise UserError(f"{twice} is named twice. Name each model once.")
    check_inputs(models, [data])
    from evaluation.layers import measure
    from evaluation.layers.position_sample import SampleSettings

    asked = SampleSettings(positions, tokens, clusters, 0, mask_rate, shuffled_ngrams, seed)
    dataset = Dataset(data)
    settings, results = measure(models, dataset, asked, seq_len)
    found = []
    with CommandProgress() as line:
        for measured in results:
            found.append(measured)
            line.show(len(found), len(models) * (2 if shuffled_ngrams else 1), f"measured: {measured.model}")
    if as_json:
        write_json_output(as_json, _to_json(found, dataset.location, settings))
    for measured in found:
        _print(measured, clusters)
    if out:
        _draw(found, out)


def _to_json(found: "list[ModelMeasures]", data: str, settings: "SampleSettings") -> dict[str, Any]:
    models: dict[str, Any] = {}
    for one in found:
        models.setdefault(one.model, {})[one.text] = {"objective": one.objective, **asdict(one.found)}
    return {"data": data, "settings": asdict(settings), "models": models}


def _draw(found: "list[ModelMeasures]", out: Path) -> None:
    from evaluation.layers import draw_information, draw_similarity

    out.mkdir(parents=True, exist_ok=True)
    short = _short_names([one.model for one in found])
    shown = [replace(one, model=f"{short[one.model]} ({one.objective})") for one in found]
    for path, draw, anything in (
        (out / "similarity.png", draw_similarity, any(one.found.similarities for one in found)),
        (out / "information.png", draw_information, any(one.found.information for one in found)),
    ):
        if anything:
            draw(shown, path)
            typer.echo(str(path))
        else:
            path.unlink(missing_ok=True)  # an older one would be taken for these models'


def _short_names(names: list[str]) -> dict[str, str]:
    """The last part of each path, or all of it where that would not tell models apart."""
    last = {name: Path(name).resolve().name for name in names}
    return {name: short if list(last.values()).count(short) == 1 else name for name, short in last.items()}


def _print(measured: "ModelMeasures", clusters: int) -> None:
    from evaluation.layers import FEWEST

    found = measured.found
    console = tables.output(_WIDTH)
    head = f"\n{measured.model}, {measured.objective}, {found.layers} layers of {found.hidden}, {measured.text} text"
    console.print(Text(head, style="bold"))
    if found.similarities:
        columns = {_head(one.measure, one): one.between for one in found.similarities}
        table = _table("between layers", [f"{layer} and {layer + 1}" for layer in range(found.layers)], columns)
        chance = (f"{sum(one.chance) / len(one.chance):.3f}" for one in found.similarities)
        table.add_row("by chance, on average", *chance, style="dim")
        console.print(table)
    else:
        console.print(f"How alike layers are is not shown: the text has no {FEWEST} positions of a kind")
    if found.information:
        columns = {_head(one.of, one): one.at for one in found.information}
        console.print(_table("share told at layer", [str(layer) for layer in range(found.layers + 1)], columns))
    else:
        few = f"no kind has more of the --tokens' positions than --clusters {clusters} (and at least {FEWEST})"
        console.print(f"What layers tell is not shown: {few}. Give fewer clusters, more positions or more text")


def _head(name: str, of: "Similarity | Information") -> str:
    return f"{name}, {of.kind}\n({of.positions:,})"


def _table(title: str, rows: list[str], columns: "dict[str, list[Estimate]]") -> Table:
    cells = [
        (row, *(f"{one.value:.3f} ± {one.high - one.value:.3f}" for one in estimates))
        for row, *estimates in zip(rows, *columns.values(), strict=True)
    ]
    return tables.table((title, *columns), cells)
