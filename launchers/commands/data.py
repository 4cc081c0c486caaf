"""`maskwright tokenizer` and `maskwright prep`."""

import os
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from data_prep.errors import UserError

if TYPE_CHECKING:
    from data_prep.worker import Progress as Totals

tokenizer_app = typer.Typer(help="Train a tokenizer.", no_args_is_help=True)
prep_app = typer.Typer(help="Turn raw text into verified, pre-tokenized shards.", no_args_is_help=True)

PLAIN_SECONDS = 10  # between progress lines where there is no terminal


class Kind(str, Enum):
    wordpiece = "wordpiece"
    bpe = "bpe"


Inputs = Annotated[
    list[str],
    typer.Option(
        "--input", metavar="F...", help="File, folder or quoted glob; may be repeated. jsonl, txt, +.gz, +.zst"
    ),
]
MoreInputs = Annotated[
    list[str] | None, typer.Argument(metavar="[F...]", help="More inputs, as from a glob that the shell expands.")
]
TextField = Annotated[str, typer.Option(help="The JSON field that holds a document's text.")]


@tokenizer_app.command("train")
def tokenizer_train(
    input: Inputs,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    more: MoreInputs = None,
    kind: Annotated[Kind, typer.Option(help="As BERT's (wordpiece) or RoBERTa's (byte-level bpe).")] = Kind.wordpiece,
    vocab_size: Annotated[int, typer.Option(min=1, help="Tokens, special ones included.")] = 30_522,
    lowercase: Annotated[bool, typer.Option(help="Lower-case the text (wordpiece only).")] = True,
    text_field: TextField = "text",
    sample_mb: Annotated[
        int, typer.Option(min=1, help="Megabytes of text to learn from, taken from all inputs by their sizes.")
    ] = 1000,
) -> None:
    """Train a WordPiece or byte-level BPE tokenizer, saved for `AutoTokenizer.from_pretrained`.

    Example: `maskwright tokenizer train --input 'text/*.jsonl.zst' --kind wordpiece --vocab-size 30522 --out tok`
    """
    from data_prep import tokenizer
    from data_prep.sources import find_inputs

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; choose another --out.")
    texts = _Texts(find_inputs([*input, *(more or [])]), text_field, sample_mb * 10**6)
    size = tokenizer.train(texts, kind.value, vocab_size, out, lowercase)
    if texts.rejected:
        typer.echo(f"{texts.rejected} rows were unreadable, the first being {texts.first_reason}", err=True)
    note = f" (not {vocab_size}: the text has no more)" if size < vocab_size else ""
    source = f"a sample of {texts.text_bytes / 1e6:,.0f} MB" if texts.cut else f"{texts.text_bytes / 1e6:,.1f} MB"
    typer.echo(f"{out}: {kind.value} tokenizer with {size} tokens{note}, learnt from {source} of text")


class _Texts:
    """Documents from the beginnings of all inputs, as often as they are iterated over, the same each time.

    Each input gives a share of `sample_bytes` (UTF-8) by the size of its file; what a short one leaves goes to those
    after it, so that a corpus smaller than the sample is read whole. Of more inputs than MIN_SHARE bytes each allow,
    evenly spread ones are read. After an iteration, `text_bytes` were given, and `cut` tells whether there were more.
    """

    MIN_SHARE = 1_000_000

    def __init__(self, paths: list[Path], text_field: str, sample_bytes: int) -> None:
        self.text_field, self.sample_bytes = text_field, sample_bytes
        count = min(len(paths), max(1, sample_bytes // self.MIN_SHARE))
        self.paths = [paths[number * len(paths) // count] for number in range(count)]
        self.left_out = count < len(paths)
        self.rejected, self.first_reason = 0, ""
        self.text_bytes, self.cut = 0, False

    def __iter__(self) -> Iterator[str]:
        self.rejected, self.text_bytes, self.cut = 0, 0, self.left_out
        sizes = [path.stat().st_size for path in self.paths]
        for number, path in enumerate(self.paths):
            left = self.sample_bytes - self.text_bytes
            yield from self._beginning(path, left * sizes[number] // max(1, sum(sizes[number:])))

    def _beginning(self, path: Path, share: int) -> Iterator[str]:
        from data_prep.sources import Source

        for row in Source(path, self.text_field):
            if row.reason:
                self.rejected += 1
                self.first_reason = self.first_reason or f"{path} line {row.line}: {row.reason}"
                continue
            text = row.text.encode()[:share].decode(errors="ignore") if len(row.text) * 4 > share else row.text
            size = len(text.encode())
            self.cut = self.cut or len(text) < len(row.text)
            if not text and row.text:
                return
            share -= size
            self.text_bytes += size
            yield text


@prep_app.command("run")
def prep_run(
    input: Inputs,
    tokenizer: Annotated[Path, typer.Option(metavar="DIR", help="Folder of a Hugging Face fast tokenizer.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the data set; train/ and valid/ in it if split.")],
    more: MoreInputs = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
    text_field: TextField = "text",
    valid_fraction: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="Share of the documents, chosen by a hash of their text, for DIR/valid."),
    ] = 0.0,
) -> None:
    """Tokenize text files into a data set; interrupted, the same command goes on.

    Rows that cannot be read are counted and listed in DIR/quarantine.

    Example: `maskwright prep run --input 'text/*.jsonl.zst' --tokenizer tok --out data/books --valid-fraction 0.01`
    """
    from data_prep.plan import Settings
    from data_prep.prepare import prepare
    from data_prep.sources import find_inputs

    paths = find_inputs([*input, *(more or [])])
    settings = Settings(text_field=text_field, valid_fraction=valid_fraction)
    with _ProgressLine() as show:
        prepared = prepare(paths, tokenizer, out, workers or _cores(), settings, show)
    for note in prepared.notes:
        typer.echo(note, err=True)
    for folder, manifest in prepared.manifests.items():
        totals = manifest.totals
        typer.echo(
            f"{folder}: {'already finished, ' if prepared.already_finished else ''}{totals.documents:,} documents, "
            f"{totals.tokens:,} tokens, {totals.blocks:,} blocks, {len(manifest.shards):,} shards, "
            f"fingerprint {manifest.fingerprint[:16]}"
        )
    empty, quarantined = (sum(getattr(s, n) for s in manifest.sources) for n in ("empty", "quarantined"))
    if empty or quarantined:
        where = f" (see {out / 'quarantine'})" if quarantined else ""
        typer.echo(f"left out: {empty:,} empty documents, {quarantined:,} unreadable rows{where}", err=True)


def _cores() -> int:
    """Cores that this process may use: what a scheduler grants, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _ProgressLine:
    """Shows a preparation's totals: a live line on a terminal, else a plain line now and then."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (BarColumn(), TextColumn("{task.percentage:3.0f}% {task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("", total=None) if self._bar else None
        self._begin = self._printed = time.monotonic()

    def __enter__(self) -> "_ProgressLine":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, totals: "Totals", total_bytes: int) -> None:
        now = time.monotonic()
        rate = totals.text_bytes / 1e6 / max(now - self._begin, 1e-9)
        line = f"{rate:.1f} MB/s of text, {totals.documents:,} documents, {totals.tokens:,} tokens"
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=totals.file_bytes, total=total_bytes, description=escape(line))
        elif now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            typer.echo(f"{totals.file_bytes / total_bytes:4.0%} {line}", err=True)
