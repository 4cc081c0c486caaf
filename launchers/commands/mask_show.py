"""`maskwright mask show`: show how a text is masked in several epochs."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from data_prep.common.errors import UserError

if TYPE_CHECKING:
    from launchers.commands.mask_view import Show, ShownStep
    from pretrain.config import Config

_FATES = {"mask": "[MASK]", "random": "random", "kept": "kept"}
_OVERRIDE = re.compile(r"(objective|[\w-]+(\.[\w-]+)+)=")


def mask_show(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="text in quotes")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="masking.strategy=span run.seed=1 ...")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="show rows of a data set: a folder or a URL")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="folder, tokenizer.json or hub id; not with --data")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML file with masking:, run.seed, data.seq_len ...")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="number of steps, each in a new epoch")] = 4,
    rows: Annotated[int, typer.Option(min=1, help="number of rows to show; a long text is split into rows")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per step, with token ids")] = False,
) -> None:
    """Show how a text is masked in several epochs, with the masks that training draws.

    The settings have the same names as in `maskwright train`.

    Examples:

        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer
        maskwright mask show "The old ship left the harbour." --tokenizer data/demo-tokenizer masking.strategy=span
        maskwright mask show --data data/demo/train --config configs/demo.yaml --rows 2
        maskwright mask show "$(cat text.txt)" --tokenizer bert-base-uncased 'masking.strategy={token: 1, span: 3}'
    """
    from launchers.commands.mask_view import show_data, show_text
    from pretrain.config import load_config

    words = [word for word in (text, *(overrides or [])) if word is not None]
    settings = [word for word in words if _OVERRIDE.match(word)]
    texts = [word for word in words if word not in settings]
    if len(texts) > 1:
        raise UserError(
            f"{texts[0]!r} and {texts[1]!r} are two texts; quote a text, and write settings as section.key=value"
        )
    if len(texts) + (data is not None) != 1:
        raise UserError("Give either a text in quotes, or --data.")
    if data is not None and tokenizer is not None:
        raise UserError("--data has its own tokenizer; leave out --tokenizer")
    if data is None and tokenizer is None:
        raise UserError("A text needs --tokenizer: a folder, a tokenizer.json, or a hub id such as bert-base-uncased.")
    # Required config keys that do not affect the masks.
    parsed = load_config(config, [*settings, "run.dir=.", "train.steps=1", f"data.train={json.dumps(data or '.')}"])
    if tokenizer is None:
        found = show_data(parsed, rows)
    else:
        found = show_text(texts[0], tokenizer, parsed, rows)
    if as_json:
        for step in found.steps(steps):
            typer.echo(json.dumps(step.to_json(), ensure_ascii=False))
    else:
        _print(found, steps)


def _print(found: "Show", steps: int) -> None:
    from launchers.commands.marked_text import LEGEND, Segment, coloured, listed

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(Text(_settings(found.config), style="bold"))
    units: list[Segment] = [(", ", None), ("⟦two words⟧", "mask"), (" were selected as one", None)]
    console.print(coloured(LEGEND if found.rows.by_token else LEGEND + units))
    for step in found.steps(steps):
        rate = "" if isinstance(found.config.masking.rate, float) else f", rate {step.rate:.3g}"
        console.print(Text(f"\nstep {step.step}, epoch {step.epoch}{rate}", style="bold"), end="")
        console.print(f": {_counts(step)}")
        for number, row in enumerate(step.rows):
            if found.rows.n_rows > 1:
                console.print(Text(f"row {number}", style="dim"))
            for text in row.texts:
                console.print(listed(text))
    if found.rows.n_others:
        console.print(f"\n{found.rows.n_others} more rows; --rows {found.rows.n_rows + found.rows.n_others} shows all")


def _settings(config: "Config") -> str:
    """Describe the settings that determine the masks."""
    masking = config.masking
    more = {
        "span": f" (p {masking.span.p:g}, up to {_plural(masking.span.max_words, 'word')})",
        "ngram": f" ({_plural(masking.ngram, 'word')})",
    }
    weights = masking.weights.items()
    mix = [f"{name}{more.get(name, '')}{f' with weight {w:g}' if len(weights) > 1 else ''}" for name, w in weights]
    rate = masking.rate
    share = f"{rate:g}" if isinstance(rate, float) else f"{rate.start:g} to {rate.end:g} ({rate.schedule})"
    return f"strategy {' and '.join(mix)}, rate {share}, seed {config.run.seed}, rows of {config.data.seq_len} slots"


def _counts(step: "ShownStep") -> str:
    selected = f"{step.selected} of {_plural(step.tokens, 'ordinary token')}"
    share = f"{step.selected / max(step.tokens, 1):.1%}"
    fates = ", ".join(f"{step.fates[kind]} {name}" for kind, name in _FATES.items())
    return f"{selected} ({share}) in {_plural(step.units, 'unit')}: {fates}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
