"""Shared output of the `prep` commands: progress, notes and totals."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from data_prep.common.errors import UserError
from launchers.display.progress import CommandProgress

if TYPE_CHECKING:
    from data_prep.jobs import Prepared, TaskProgress


def show_totals(line: CommandProgress) -> Callable[[str, "TaskProgress", int], None]:
    """Return a function that shows the totals of a stage on the progress line."""

    def show(stage: str, totals: "TaskProgress", total_bytes: int) -> None:
        seconds = line.seconds(stage)
        text = stage
        if totals.documents:
            text += f": {totals.text_bytes / 1e6 / seconds:.1f} MB/s of text, {totals.documents:,} documents"
        if totals.tokens:
            text += f", {totals.tokens:,} tokens ({totals.tokens / 1e6 / seconds:.1f} M/s)"
        line.show(totals.file_bytes, total_bytes, text)

    return show


def print_prepared(prepared: "Prepared", out: Path, already_finished: bool = False) -> None:
    """Print the notes and totals of a preparation. Raises UserError if too much of the input was left out."""
    for note in prepared.notes:
        typer.echo(note, err=True)
    for folder, manifest in prepared.manifests.items():
        totals = manifest.totals
        typer.echo(
            f"{folder}: {'already finished, ' if already_finished else ''}{totals.documents:,} documents, "
            f"{totals.tokens:,} tokens, {totals.blocks:,} blocks, {len(manifest.shards):,} shards, "
            f"fingerprint {manifest.fingerprint[:16]}"
        )
    left_out = manifest.left_out()
    if left_out:
        where = f" (see {out / 'quarantine.jsonl'})" if left_out.get("unreadable") else ""
        counts = [f"{count:,} {reason}" for reason, count in left_out.items()]
        typer.echo(f"left out: {', '.join(counts)}{where}", err=True)
    if prepared.left_out_bytes:
        typer.echo(f"not read: {prepared.left_out_bytes:,} bytes of the input", err=True)
    if prepared.problem:
        raise UserError(prepared.problem)
