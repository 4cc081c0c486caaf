"""`maskwright generate`: write text with a trained model."""

import json
import math
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from data_prep.errors import UserError
from launchers.commands.arguments import check_inputs

if TYPE_CHECKING:
    from rich.text import Text as Line

    from data_prep.tokenizer import Spelling
    from evaluation.generation import GeneratedText


def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Hugging Face model folder, or run folder")],
    prompt: Annotated[str, typer.Option(help="text to continue; each [MASK] is replaced by a token")] = "",
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens to add to a prompt without [MASK]; 16 by default")
    ] = None,
    method: Annotated[
        Literal["mask-predict", "gibbs"] | None,
        typer.Option(help="sampling method of a masked model; mask-predict by default"),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, help="mask-predict: iterations, by default 10 or the number of masks; gibbs: sweeps, by default 5"
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="sampling temperature; 0 takes the most likely token")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="draw from the K most likely tokens; 0 draws from all")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="number of texts")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="random seed; the same seed gives the same texts")] = 0,
    show_steps: Annotated[bool, typer.Option(help="show every step of each text")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per text")] = False,
) -> None:
    """Write texts with a masked model (mask-predict or Gibbs sampling) or a causal model (left to right).

    Special tokens are never written.

    Examples:

        maskwright generate runs/demo --prompt "The [MASK] [MASK] sailed across the sea."

        maskwright generate runs/demo --length 20 --method gibbs --temperature 0.7 --samples 5

        maskwright generate runs/demo --prompt "The [MASK] [MASK] sailed." --temperature 0 --show-steps
    """
    if not math.isfinite(temperature):
        raise UserError(f"--temperature must be a finite number, 0 or more, not {temperature}. Write for example 0.7.")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("--prompt is not valid UTF-8. Check the encoding of your terminal.") from None

    check_inputs([model])
    from rich.console import Console

    from data_prep.tokenizer import open_spelling
    from evaluation.generation import GenerationRequest, Writer
    from pretrain.export import model_folder

    folder = model_folder(model)
    writer, spelling = Writer(folder), open_spelling(folder)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    asked = GenerationRequest(prompt, length, method, iterations, temperature, top_k, seed, samples)
    for number, steps in enumerate(writer.write(asked)):
        if as_json:
            typer.echo(json.dumps({"sample": number, **_to_json(steps, spelling, writer.outside, show_steps)}))
            continue
        if samples > 1:
            console.print(f"{number}: ", style="dim", end="\n" if show_steps else "")
        if show_steps:
            for step, text in enumerate(steps, 1):
                console.print(_marked(text, spelling, writer.outside, f"{step:3}  "))
        console.print(_written(steps, spelling, writer.outside))


def _written(steps: "list[GeneratedText]", spelling: "Spelling", outside: frozenset[int]) -> "Line":
    """The final text. Generated tokens are coloured."""
    from rich.text import Text as Line

    from data_prep.tokenizer import printable

    new = {place for step in steps for place, drawn in enumerate(step.drawn) if drawn}
    ids = steps[-1].ids
    inside = [place for place, id in enumerate(ids) if id not in outside]
    parts = [
        (printable(spelling.text(ids[place] for place in places), keep="\n\t"), "yellow" if written else "")
        for written, places in groupby(inside, key=new.__contains__)
    ]
    return Line.assemble((parts[0][0].lstrip(), parts[0][1]), *parts[1:]) if parts else Line()


def _marked(text: "GeneratedText", spelling: "Spelling", outside: frozenset[int], head: str) -> "Line":
    """The text after one step. Tokens drawn in this step are marked."""
    from rich.text import Text as Line

    from launchers.display import coloured, marked
    from pretrain.data import BatchDocument, ShownPrediction

    drawn = [place for place, new in enumerate(text.drawn) if new]
    document = BatchDocument(
        0, text.ids, text.ids, [ShownPrediction(place, text.ids[place], "mask") for place in drawn]
    )
    return Line.assemble((head, "dim"), coloured(marked(document, spelling, outside, [0] * len(text.ids))))


def _to_json(
    steps: "list[GeneratedText]", spelling: "Spelling", outside: frozenset[int], show_steps: bool
) -> dict[str, object]:
    found: dict[str, object] = {"text": _plain(steps[-1], spelling, outside), "ids": steps[-1].ids}
    if show_steps:
        found["steps"] = [
            {
                "text": _plain(step, spelling, outside),
                "ids": step.ids,
                "drawn": [place for place, new in enumerate(step.drawn) if new],
            }
            for step in steps
        ]
    return found


def _plain(text: "GeneratedText", spelling: "Spelling", outside: frozenset[int]) -> str:
    return spelling.text(id for id in text.ids if id not in outside).strip()
