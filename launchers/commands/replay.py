"""`maskwright replay`: rebuild and show the batch of a step."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from data_prep.common.errors import UserError, printable
from launchers.arguments import RunArgument, YesOption

if TYPE_CHECKING:
    from data_prep.tokenizer import Spelling
    from launchers.display import Segment
    from pretrain.data import BatchDocument
    from pretrain.reporting import Replayed

SHOWN_ROWS = 8


def replay(
    run: RunArgument,
    step: Annotated[int, typer.Option(min=1, help="a step that is in the journal")],
    rows: Annotated[
        int | None, typer.Option(min=1, help=f"number of rows to show; by default {SHOWN_ROWS}, or all with --json")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per row, with token ids")] = False,
    diff: Annotated[
        Path | None, typer.Option(metavar="OTHER_RUN", help="compare with the batch of another run at the same step")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Show the documents, masks and labels of a step, from the journal and the shards.

    With --diff, compare the batches of two runs bit for bit: exit code 0 if they are the same, else 1.

    Examples:

        maskwright replay runs/demo --step 120
        maskwright replay runs/demo --step 120 --rows 2
        maskwright replay runs/demo --step 120 --json > step-120.jsonl
        maskwright replay runs/demo --step 120 --diff runs/other
    """
    from pretrain.reporting import replay as replay_step

    found = replay_step(run, step, yes)
    if diff is not None:
        _compare(found, replay_step(diff, step, yes), run, diff, as_json)
    elif as_json:
        _print_json(found, rows or len(found.rows))
    else:
        _print_rows(found, run, rows or SHOWN_ROWS)


def _compare(found: "Replayed", other: "Replayed", run: Path, diff: Path, as_json: bool) -> None:
    what = found.rows.difference(other.rows)
    if as_json:
        typer.echo(json.dumps({"step": found.step, "same": what is None, "difference": what}))
    elif what is None:
        typer.echo(f"step {found.step}: {run} and {diff} saw the same {len(found.rows)} rows, bit for bit")
    else:
        typer.echo(f"step {found.step}: {run} and {diff} saw different batches: {what}")
    sys.exit(0 if what is None else 1)


def _segments(found: "Replayed", document: "BatchDocument", spelling: "Spelling") -> list["Segment"]:
    from launchers.display import marked

    return marked(document, spelling, frozenset({found.vocabulary.cls, found.vocabulary.sep}))


def _print_json(found: "Replayed", rows: int) -> None:
    from launchers.display import plain_text

    spelling = _spelling(found)
    for number, documents in enumerate(found.rows.rows(0, rows).documents(found.vocabulary)):
        shown = [
            asdict(document) | {"text": plain_text(_segments(found, document, spelling)) if spelling else None}
            for document in documents
        ]
        kind = found.rows.kinds[number]
        about = {"step": found.step, "row": number, "objective": kind.name, "view": kind.view.value}
        typer.echo(json.dumps(about | {"documents": shown}, ensure_ascii=False))


def _spelling(found: "Replayed") -> "Spelling | None":
    from data_prep.tokenizer import Spelling

    return Spelling.open(found.tokenizer) if (found.tokenizer / "tokenizer.json").is_file() else None


def _print_rows(found: "Replayed", run: Path, rows: int) -> None:
    from launchers.display import LEGENDS, coloured, listed

    spelling = _spelling(found)
    if spelling is None:
        raise UserError(f"{found.tokenizer} has no tokenizer.json to decode with; --json shows the token ids")
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(printable(_head(found, run)), style="bold"))
    kinds = dict.fromkeys(found.rows.kinds)
    for view in dict.fromkeys(kind.view for kind in kinds):
        console.print(coloured(LEGENDS[view.value]))
    for number, documents in enumerate(found.rows.rows(0, rows).documents(found.vocabulary)):
        predictions = sum(len(document.predictions) for document in documents)
        filled = sum(len(document.original) for document in documents)
        plural = "" if len(documents) == 1 else "s"
        kind = f" ({found.rows.kinds[number].name})" if len(kinds) > 1 else ""
        counts = f"{filled} of {found.rows.seq_len} slots, {predictions} predicted"
        row = Text(f"\nrow {number}{kind}", style="bold")
        console.print(row, f"{len(documents)} document{plural}, {counts}", sep=": ")
        for document in documents:
            console.print(listed(_segments(found, document, spelling)))
    if rows < len(found.rows):
        console.print(f"\n{len(found.rows) - rows} more rows; --rows {len(found.rows)} shows all")


def _head(found: "Replayed", run: Path) -> str:
    places = zip(found.names, found.position.sources, strict=True)
    at = "; ".join(f"{name} epoch {at.epoch}, window {at.window}, row {at.row}" for name, at in places)
    loss = f", loss {found.metrics['train/loss']:.4f}" if "train/loss" in found.metrics else ""
    phase = f" of phase {found.phase}" if found.phase else ""
    return f"{run}, step {found.step}{phase}{loss}, from {at}; checksum {found.checksum} as in the journal"
