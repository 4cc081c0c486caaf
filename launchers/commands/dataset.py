"""`maskwright prep info`, `prep show` and `prep verify`: what is in a finished data set, and whether it is sound."""

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.errors import UserError
from data_prep.spelling import printable
from launchers.progress import ProgressLine
from pretrain.threads import usable_cores

if TYPE_CHECKING:
    import numpy as np

    from data_prep.reader import Dataset

DataSet = Annotated[str, typer.Argument(metavar="DIR", help="A data set: a folder or a URL.", show_default=False)]

PACKED_WINDOWS = 4  # packed for the estimate of fill


def info(
    location: DataSet,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the figures.")] = None,
    seq_len: Annotated[
        list[int] | None,
        typer.Option(min=3, metavar="N", help="Row length to give the fill for; may be repeated.  [128 512 1024 8192]"),
    ] = None,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Most frequent tokens to list.")] = 20,
) -> None:
    """Show what a data set holds: counts by source, document lengths, fill of rows, most frequent tokens.

    Reads every token. Entropy is in nats a token. Fill is the share of slots that are not padding, [CLS] and [SEP]
    being counted as filled.

    Example: `maskwright prep info data/books --seq-len 128 --seq-len 512 --png books.png`
    """
    from data_prep.inspect import SEQ_LENS, summary
    from data_prep.reader import Dataset
    from launchers.commands.facts import print_facts

    if png is not None and not png.resolve().parent.is_dir():
        raise UserError(f"There is no folder {png.resolve().parent} to write {png.name} to.")
    dataset = Dataset(location)
    with ProgressLine() as line:
        facts = summary(dataset, seq_len or SEQ_LENS, top, _shown(line, "tokens"))
    for row in facts["fill"]:
        row["packed"] = packed_fill(dataset, row["seq_len"])
    if png is not None:
        from pretrain.png_charts import draw_data_set

        draw_data_set(facts, png, _name(dataset))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        print_facts(facts, dataset.location)


def _name(dataset: "Dataset") -> str:
    return Path(dataset.location).name or str(Path(dataset.location).resolve())


def packed_fill(dataset: "Dataset", seq_len: int, windows: int = PACKED_WINDOWS) -> float:
    """Share of slots that are not padding in rows packed as for training, from `windows` windows of random blocks."""
    import numpy as np

    from pretrain.config import DataConfig
    from pretrain.data.packing import SPECIALS_PER_PIECE, pack, randoms_needed

    window_blocks = DataConfig.model_fields["window_blocks"].default
    generator = np.random.default_rng(0)
    blocks = generator.permutation(dataset.n_blocks)[: windows * window_blocks]
    filled = rows = 0
    for window in np.split(blocks, range(window_blocks, len(blocks), window_blocks)):
        lengths = np.concatenate([dataset.document_lengths(int(block)) for block in window]).astype(np.int64)
        random = generator.integers(1 << 64, size=randoms_needed(lengths, seq_len), dtype=np.uint64)
        packed = pack(np.cumsum(lengths) - lengths, lengths, seq_len, random, "best_fit")
        filled += int(lengths.sum()) + SPECIALS_PER_PIECE * len(packed.piece_start)
        rows += len(packed)
    return filled / (rows * seq_len)


def show(
    location: DataSet,
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the document, from 0.", show_default=False)],
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the tokens, a line for each word.")] = False,
) -> None:
    """Print a document as the data set's own tokenizer decodes it; of pairs, what is to be repaired as ⟦word⟧.

    Example: `maskwright prep show data/books 1234`
    """
    from data_prep.reader import Dataset
    from data_prep.show import document

    dataset = Dataset(location)
    found = document(dataset, number)
    origin = " ".join(part for part in (found.input, f"({found.source})" if found.source else "") if part)
    head = {
        "document": f"{found.number:,}",
        "block": f"{found.key}, document {found.place:,} of it",
        "shard": found.shard,
        "source": origin or "not recorded",
        **({} if found.id is None else {"id": str(found.id)}),
        "tokens": f"{len(found.ids):,}",
        "words": f"{int(found.word_starts.sum()):,}",
        **({} if found.targets is None else {"targets": f"{int(found.targets.sum()):,} tokens to repair"}),
    }
    for name, value in head.items():
        typer.echo(f"{name:<10}{printable(value)}")
    typer.echo()
    if not tokens:
        text = found.text if found.targets is None else _with_targets(found.ids, found.targets, dataset.tokenizer_path)
        typer.echo(printable(text, keep="\n\t"))
        return
    words: list[list[str]] = []
    targets = [False] * len(found.ids) if found.targets is None else found.targets.tolist()
    for id, token, starts, target in zip(
        found.ids.tolist(), found.tokens, found.word_starts.tolist(), targets, strict=True
    ):
        if starts or not words:
            words.append([])
        words[-1].append(f"⟦{printable(token)}⟧ ({id})" if target else f"{printable(token)} ({id})")
    for word in words:
        typer.echo("  ".join(word))


def _with_targets(ids: "np.ndarray", targets: "np.ndarray", tokenizer: Path) -> str:
    """The text, with a mark around each run of targets."""
    from data_prep.spelling import open_spelling

    spelling, text = open_spelling(tokenizer), ""
    for target, group in groupby(zip(ids.tolist(), targets.tolist(), strict=True), lambda one: one[1]):
        part = spelling.text(id for id, _ in group)
        word = part.lstrip()
        text += f"{part[: len(part) - len(word)]}⟦{word}⟧" if target else part
    return text.removeprefix(" ")


def verify(
    location: DataSet,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one a core.")] = None,
) -> None:
    """Read every byte of a data set and name all damage; exit 1 if there is any.

    Example: `maskwright prep verify data/books`
    """
    from data_prep.remote import is_url, shown
    from data_prep.storage import read_manifest
    from data_prep.verify import verify as problems_of

    if is_url(location):
        raise UserError(f"{shown(location)} is not on this machine; copy the data set to a folder, then verify that.")
    folder = Path(location)
    problems = 0
    with ProgressLine() as line:
        for problem in problems_of(folder, workers or usable_cores().number, _shown(line, "bytes")):
            typer.echo(printable(problem))
            problems += 1
    if problems:
        lines = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(f"{folder} is damaged: {lines}; restore the files or prepare the data set again.")
    totals = read_manifest(folder).totals
    typer.echo(f"{folder}: sound, {totals.documents:,} documents, {totals.tokens:,} tokens, {totals.blocks:,} blocks")


def _shown(line: ProgressLine, unit: str) -> Callable[[int, int], None]:
    return lambda done, total: line.show(done, total, f"{done / 1e6 / line.seconds(unit):,.0f} million {unit}/s")
