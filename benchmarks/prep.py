"""From text to shards: `maskwright prep run` against `datasets.map` + `ShardWriter`, and each stage by itself.

    python benchmarks/prep.py --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --rounds 3

Both sides read the same files on the same number of cores, from process start to process end, taking turns; their
token ids are compared. The stages are timed in one process on the first file, each on what the one before gave.
Prints a table and writes it to --out.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import statistics
import subprocess
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions, warn_if_busy  # noqa: E402
from data_prep.encoding import Encoders  # noqa: E402
from data_prep.errors import UserError  # noqa: E402
from data_prep.files import atomic_writer  # noqa: E402
from data_prep.format import Dataset, token_dtype  # noqa: E402
from data_prep.shards import ShardWriter  # noqa: E402
from data_prep.sources import find_inputs  # noqa: E402
from data_prep.tokenizer import describe, load  # noqa: E402

PACKAGES = ("tokenizers", "nanotoken", "gigatoken", "datasets", "webdataset", "orjson", "zstandard")


@dataclass(frozen=True)
class Round:
    """Seconds of each side."""

    usual: float
    ours: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, nargs="+", help=".jsonl.zst files with a text field")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures both sides once")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of each side")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/prep.md")
    args = parser.parse_args()
    load_before = warn_if_busy()
    files = [Path(found.location) for found in find_inputs(args.input)]
    text_bytes = sum(len(text) for file in files for text in texts_of(file))
    rounds = []
    with tempfile.TemporaryDirectory(prefix="prep-") as folder:
        usual, ours = Path(folder) / "usual", Path(folder) / "ours"
        for number in range(1, args.rounds + 1):
            for side in (usual, ours):
                shutil.rmtree(side, ignore_errors=True)
            usual.mkdir()
            script = [ROOT / "benchmarks/usual_prep.py", usual, args.tokenizer, args.processes, *files]
            inputs = [word for file in files for word in ("--input", file)]
            prep = ["-m", "launchers.cli", "prep", "run", *inputs, "--tokenizer", args.tokenizer, "--out", ours]
            rounds.append(Round(timed(script), timed([*prep, "--workers", args.processes])))
            print(f"round {number}: {rounds[-1]}", flush=True)
        same = ids_of_usual(usual) == ids_of_ours(ours)
        totals = Dataset(ours).manifest.totals
        encoder = orjson.loads((ours / "prep/tasks/00000.json").read_bytes())["encoder"]
        stages = stages_of(files[0], args.tokenizer, Path(folder))
    if not same:
        raise UserError("the two sides gave different ids")
    work = f"{len(files)} files, {text_bytes / 1e6:,.0f} MB of text, {totals.documents:,} documents, "
    work += f"{totals.tokens:,} tokens; ids equal; encoder {encoder}"
    report = report_of(rounds, text_bytes, work, stages, args.processes)
    report += conditions("prep.py", PACKAGES, load_before)
    print(report)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def texts_of(file: Path) -> list[bytes]:
    """The documents of a .jsonl.zst file in UTF-8."""
    with zstandard.open(file, "rb") as lines:
        return [orjson.loads(line)["text"].encode() for line in lines.read().split(b"\n") if line]


def timed(command: list[Any]) -> float:
    """Seconds from start to end of a Python command; what it wrote before is on disk by then."""
    os.sync()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise UserError(f"{shlex.join(map(str, command))} failed:\n{done.stderr[-4000:]}")
    return seconds


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


def stages_of(file: Path, tokenizer: Path, folder: Path) -> list[tuple[str, float, float]]:
    """(stage, seconds, MB of text) of one process, one stage after the other over the whole file."""
    seconds: list[tuple[str, float]] = []

    def stage(name: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = work()
        seconds.append((name, time.perf_counter() - begin))
        return result

    info, loaded = describe(tokenizer), load(tokenizer)
    data = stage("read (from the page cache)", file.read_bytes)
    text = stage("decompress (zstd)", lambda: b"".join(zstandard.ZstdDecompressor().read_to_iter(data)))
    lines = stage("split into lines", lambda: text.split(b"\n"))
    texts = stage("parse (orjson)", lambda: [orjson.loads(line)["text"] for line in lines if line])
    encoder, _ = stage("load tokenizer, prove parity", lambda: Encoders(loaded, info).choose(texts[:200]))
    cold = stage(f"tokenize ({encoder.name}), first pass", lambda: encoder(texts))
    stage(f"tokenize ({encoder.name}), caches warm", lambda: encoder(texts))
    (folder / "stage").mkdir()

    def write() -> None:
        with ShardWriter(folder / "stage", 0, token_dtype(info.vocab_size)) as writer:
            writer.add(*cold)

    stage("write (tar, xxh3, SHA-256, fsync)", write)
    return [(name, taken, len(text) / 1e6) for name, taken in seconds]


def report_of(rounds: list[Round], text_bytes: int, work: str, stages: list[Any], processes: int) -> str:
    def rate(seconds: float) -> float:
        return text_bytes / 1e6 / seconds

    lines = ["| | datasets.map + ShardWriter | maskwright prep run | ratio |", "|---|---:|---:|---:|"]
    for number, one in enumerate(rounds, 1):
        lines.append(f"| round {number} | {rate(one.usual):.2f} | {rate(one.ours):.1f} | {one.usual / one.ours:.1f} |")
    usual, ours = (statistics.median(getattr(one, side) for one in rounds) for side in ("usual", "ours"))
    ratios = [one.usual / one.ours for one in rounds]
    spread = f"{usual / ours:.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    lines.append(f"| median | {rate(usual):.2f} | {rate(ours):.1f} | {spread} |")
    table = "\n".join(lines)
    parts = "\n".join(f"| {name} | {taken * 1000:,.0f} | {size / taken:,.0f} |" for name, taken, size in stages)
    return f"""# Preparing text: speed against the usual pipeline

MB of text a second, from the start of the command to its end, on {processes} cores. {work}.

{table}

Stages in one process, on the first file:

| stage | ms | MB of text a second |
|---|---:|---:|
{parts}

"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
