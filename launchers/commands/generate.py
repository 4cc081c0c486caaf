"""`maskwright generate`: text out of a trained model."""

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
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="a Hugging Face folder or a run")],
    prompt: Annotated[str, typer.Option(help="text; each [MASK] in it is a token to write")] = "",
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens to write after a prompt without masks; 16 by default")
    ] = None,
    method: Annotated[
        Literal["mask-predict", "gibbs"] | None, typer.Option(help="how a masked model writes; mask-predict by default")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="of mask-predict, 10 or as many as masks by default; sweeps of gibbs, 5")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token, 1 draws as is")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="draw from the likeliest K tokens alone; 0: from all")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="how many texts")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="the same one gives the same texts")] = 0,
    show_steps: Annotated[bool, typer.Option(help="how each text came about")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a text")] = False,
) -> None:
    """Write texts with a masked model, by mask-predict or Gibbs sampling, or with a causal one, from left to right.

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
        raise UserError("--prompt is not a text in UTF-8") from None

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
    """The result; what was written, rather than given, has a colour."""
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
    """A step; what it drew is marked."""
    from rich.text import Text as Line

    from launchers.display import coloured, marked
    from pretrain.data import BatchDocument
    from pretrain.data.batch_view import ShownPrediction

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
