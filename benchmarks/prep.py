"""From text to shards: `maskwright prep run` against `datasets.map` + `ShardWriter`, and each stage alone.

    python -m benchmarks.prep --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --rounds 3

Both sides read the same files on the same number of cores, from process start to process end, in turns. Their token ids
are compared. The stages are timed in one process on the first file; each gets the output of the one before.
"""

import compileall
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import webdataset as wds
import zstandard

from benchmarks.harness import ROOT, call, options, run, table, warn_if_busy, write_page
from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer
from data_prep.format import Dataset, ShardWriter
from data_prep.sources import Options, RowReader, SourceInput, find_inputs
from data_prep.storage import Cache, decompressed_chunks
from data_prep.tokenizer import Encoders, describe_tokenizer, load

OURS_A_ROUND = 3  # it takes only seconds, so other work on the machine matters: the median counts
PACKAGES = ("tokenizers", "nanotoken", "gigatoken", "datasets", "webdataset", "orjson", "zstandard")


@dataclass(frozen=True)
class Round:
    """Seconds of each side; for ours, the median of several runs."""

    usual: float
    ours: float


def main() -> None:
    parser = options(__doc__, "prep")
    parser.add_argument("--input", required=True, nargs="+", help=".jsonl.zst files with a text field")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures both sides once")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of each side")
    args = parser.parse_args()
    warn_if_busy()
    files = [Path(found.location) for found in find_inputs(args.input)]
    text_bytes = sum(len(text) for file in files for text in texts_of(file))
    first_bytes = sum(len(text) for text in texts_of(files[0]))
    for package in ("data_prep", "launchers"):  # as pip does when it installs them
        compileall.compile_dir(ROOT / package, quiet=1)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="prep-") as folder:
        usual, ours = Path(folder) / "usual", Path(folder) / "ours"
        for number in range(1, args.rounds + 1):
            shutil.rmtree(usual, ignore_errors=True)
            usual.mkdir()
            script = [ROOT / "benchmarks/usual_prep.py", usual, args.tokenizer, args.processes, *files]
            inputs = [word for file in files for word in ("--input", file)]
            prep = ["-m", "launchers.cli", "prep", "run", *inputs, "--tokenizer", args.tokenizer, "--out", ours]
            usual_seconds = timed(script)
            several = []
            for _ in range(OURS_A_ROUND):
                shutil.rmtree(ours, ignore_errors=True)
                several.append(timed([*prep, "--workers", args.processes]))
            rounds.append(Round(usual_seconds, statistics.median(several)))
            print(f"round {number}: {rounds[-1]}", flush=True)
        same = ids_of_usual(usual) == ids_of_ours(ours)
        totals = Dataset(ours).manifest.totals
        encoder = orjson.loads((ours / "prep/tasks/00000.json").read_bytes())["encoder"]
        stages = stages_of(files[0], args.tokenizer, Path(folder))
    if not same:
        raise UserError("the two sides gave different ids")
    work = f"{len(files)} files, {text_bytes / 1e6:,.0f} MB of text, {totals.documents:,} documents, "
    work += f"{totals.tokens:,} tokens; ids equal; encoder {encoder}"
    write_page(args.out, page(rounds, text_bytes, work, stages, first_bytes, args.processes), PACKAGES)


def texts_of(file: Path) -> list[bytes]:
    """The documents of a .jsonl.zst file in UTF-8."""
    with zstandard.open(file, "rb") as lines:
        return [orjson.loads(line)["text"].encode() for line in lines.read().split(b"\n") if line]


def timed(command: list[Any]) -> float:
    """Seconds from start to end of a Python command; earlier output is flushed to disk first."""
    os.sync()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return took(lambda: call([sys.executable, *command], env=environment))[0]


def ids_of_usual(folder: Path) -> str:
    digest = hashlib.sha256()
    shards = sorted(map(str, folder.glob("*.tar")))
    for sample in wds.WebDataset(shards, shardshuffle=False).decode():
        digest.update(np.ascontiguousarray(sample["tokens.npy"]).data)
    return digest.hexdigest()


def ids_of_ours(folder: Path) -> str:
    digest, dataset = hashlib.sha256(), Dataset(folder)
    for block in range(dataset.n_blocks):
        digest.update(dataset.tokens(block).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Stage:
    """Seconds of a stage, and of the least work that it needs."""

    name: str
    seconds: float
    limit_name: str
    limit_seconds: float


def stages_of(file: Path, tokenizer: Path, folder: Path) -> list[Stage]:
    """Time of each stage over the whole file in one process."""
    info, loaded = describe_tokenizer(tokenizer), load(tokenizer)
    data = file.read_bytes()

    def decompress() -> bytes:
        with open(file, "rb") as compressed:
            return b"".join(decompressed_chunks(compressed, ".zst"))

    chunked, text = took(decompress)
    at_once, _ = took(lambda: zstandard.ZstdDecompressor().decompress(data, max_output_size=len(text)))
    plain = folder / "stage.jsonl"
    plain.write_bytes(text)
    whole = SourceInput("", str(plain), "jsonl")
    parsed, rows = took(lambda: list(RowReader(whole, 0, len(text), Options(), Cache(folder, 1))))
    lines = [line for line in text.split(b"\n") if line]
    loads, _ = took(lambda: [orjson.loads(line) for line in lines])
    texts = [row.text for row in rows]
    encoder, _ = Encoders(loaded, info).choose(texts[:200])
    cold, ids = took(lambda: encoder(texts))
    warm, _ = took(lambda: encoder(texts))
    (folder / "stage").mkdir()

    def write() -> None:
        with ShardWriter(folder / "stage", 0, info.dtype) as writer:
            writer.add(*ids)

    written, _ = took(write)
    shard = b"".join(path.read_bytes() for path in sorted((folder / "stage").iterdir()))

    def copy() -> None:
        with atomic_writer(folder / "copy") as out:
            out.write(shard)

    copied, _ = took(copy)
    return [
        Stage("read and decompress", chunked, "zstd in one call, in memory", at_once),
        Stage("lines and JSON", parsed, "orjson on lines in memory", loads),
        Stage(f"tokenize ({encoder.name})", cold, "the same text again, its caches warm", warm),
        Stage("write (tar, xxh3, SHA-256, fsync)", written, "the same bytes, written and synced", copied),
    ]


def took(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def page(rounds: list[Round], text_bytes: int, work: str, stages: list[Stage], first_bytes: int, processes: int) -> str:
    def rate(seconds: float) -> float:
        return text_bytes / 1e6 / seconds

    rows = [
        [f"round {number}", f"{rate(one.usual):.2f}", f"{rate(one.ours):.1f}", f"{one.usual / one.ours:.1f}"]
        for number, one in enumerate(rounds, 1)
    ]
    usual, ours = (statistics.median(getattr(one, side) for one in rounds) for side in ("usual", "ours"))
    times = [one.usual / one.ours for one in rounds]
    faster = f"{usual / ours:.1f} ({min(times):.1f} to {max(times):.1f})"
    rows.append(["median", f"{rate(usual):.2f}", f"{rate(ours):.1f}", faster])
    megabytes = first_bytes / 1e6
    parts = [
        [one.name, f"{megabytes / one.seconds:,.0f}", f"{megabytes / one.limit_seconds:,.0f}", one.limit_name]
        for one in stages
    ]
    sums = [sum(one.seconds for one in stages), sum(one.limit_seconds for one in stages)]
    return f"""# Preparing text: speed against the usual pipeline

MB of text per second, from the start of the command to its end, on {processes} cores; for maskwright the median of
{OURS_A_ROUND} runs in each round. {work}.

{table(["", "datasets.map + ShardWriter", "maskwright prep run", "ratio"], *rows)}

Stages of one process on the first file ({megabytes:,.0f} MB), in MB of text per second, and the speed of the least work
that the stage needs:

{table(["stage", "speed", "limit", "the limit is"], *parts, ["all", *(f"{megabytes / one:,.0f}" for one in sums), ""])}
"""


if __name__ == "__main__":
    run(main)
