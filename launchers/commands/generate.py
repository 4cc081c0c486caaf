"""`maskwright generate`: write text with a trained model."""

import json
import math
from itertools import groupby
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from data_prep.common.errors import UserError
from launchers.arguments import JsonFlag, ModelArgument, require_inputs


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Option(help="text to continue; each [MASK] is replaced by a token")] = "",
    length: Annotated[
        int | None, typer.Option(min=1, help="tokens to add to a prompt without [MASK]; 16 by default")
    ] = None,
    sampler: Annotated[
        Literal["mask-predict", "diffusion"] | None,
        typer.Option(help="how a masked model fills masks; mask-predict by default"),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="passes over the text; by default one for each mask, of mask-predict 10 at most"),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="sampling temperature; 0 takes the most likely token")
    ] = 1.0,
    samples: Annotated[int, typer.Option(min=1, help="number of texts")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="random seed; the same seed gives the same texts")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write texts with a masked model (mask-predict or diffusion), or left to right.

    A causal model continues the prompt. A model of objective prefix translates it, in at most --length tokens.

    Special tokens are never written. New tokens are yellow on a terminal.

    Examples:

        maskwright generate runs/demo --prompt "The [MASK] [MASK] sailed across the sea."
        maskwright generate runs/demo --length 20 --sampler diffusion --temperature 0.7 --samples 5
        maskwright generate runs/demo --prompt "The [MASK] [MASK] sailed." --temperature 0
    """
    if not math.isfinite(temperature):
        raise UserError(f"--temperature must be a finite number, 0 or more, not {temperature}. Write for example 0.7.")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError("--prompt is not valid UTF-8. Check the encoding of your terminal.") from None

    [model] = require_inputs([model])
    from launchers.display import CommandProgress

    with CommandProgress("loading the model"):
        from data_prep.common.errors import printable
        from data_prep.tokenizer import Spelling
        from evaluation.generation import GenerationRequest, Writer
        from pretrain.export import model_folder

        folder = model_folder(model)
        writer, spelling = Writer(folder), Spelling.open(folder)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    asked = GenerationRequest(prompt, length, sampler, iterations, temperature, seed, samples)
    for number, (ids, new) in enumerate(writer.write(asked)):
        inside = [place for place, id in enumerate(ids) if id not in writer.outside]
        if as_json:
            text = spelling.text(ids[place] for place in inside).strip()
            typer.echo(json.dumps({"sample": number, "text": text, "ids": ids}))
            continue
        parts = [
            (printable(spelling.text(ids[place] for place in places), keep="\n\t"), "yellow" if written else "")
            for written, places in groupby(inside, key=new.__getitem__)
        ]
        parts[:1] = [(text.lstrip(), style) for text, style in parts[:1]]
        console.print(Text.assemble((f"{number}: " if samples > 1 else "", "dim"), *parts))
