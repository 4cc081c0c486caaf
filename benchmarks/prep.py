"""From text to shards: `maskwright prep run` against `datasets.map` + `ShardWriter` and datatrove; each stage alone.

    python -m benchmarks.prep --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert tokenizers/bpe --rounds 3

All sides read the same files on the same number of cores, from process start to process end, in turns. Their token ids
are compared. A byte-level BPE is measured again with the pattern of Llama 3. The stages are timed in one process on the
first file; each gets the output of the one before.
"""

import compileall
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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

OURS, USUAL, DATATROVE = "maskwright prep run", "datasets.map + ShardWriter", "datatrove"
OURS_A_ROUND = 3  # it takes only seconds, so other work on the machine matters: the median counts
PACKAGES = ("tokenizers", "nanotoken", "gigatoken", "datasets", "datatrove", "webdataset", "orjson", "zstandard")
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Stage:
    """Seconds of a stage, and of the least work that it needs."""

    name: str
    seconds: float
    limit_name: str
    limit_seconds: float


@dataclass(frozen=True)
class Measured:
    """Rounds with one tokenizer: the seconds of each side; of ours, the median of several runs."""

    name: str
    tokens: int
    documents: int
    encoder: str
    rounds: list[dict[str, float]]
    stages: list[Stage]


def main() -> None:
    parser = options(__doc__, "prep")
    parser.add_argument("--input", required=True, nargs="+", help=".jsonl.zst files with a text field")
    parser.add_argument("--tokenizer", required=True, nargs="+", type=Path, help="folders with fast tokenizers")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures each side once")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of each side")
    args = parser.parse_args()
    warn_if_busy()
    files = [Path(found.location) for found in find_inputs(args.input)]
    sizes = [sum(map(len, texts_of(file))) for file in files]
    for package in ("data_prep", "launchers"):  # as pip does when it installs them
        compileall.compile_dir(ROOT / package, quiet=1)
    results = []
    for tokenizer in map(Path.absolute, args.tokenizer):
        with tempfile.TemporaryDirectory(prefix="prep-") as folder:
            results.append(measured(tokenizer, files, Path(folder), args.rounds, args.processes))
            if other := with_pattern(tokenizer, Path(folder) / f"{tokenizer.name}, Llama 3's pattern"):
                results.append(measured(other, files, Path(folder), args.rounds, args.processes))
    write_page(args.out, page(results, sizes, args.processes), PACKAGES)


def measured(tokenizer: Path, files: Sequence[Path], folder: Path, rounds: int, processes: int) -> Measured:
    """Measure all sides in turns. Raises UserError if their ids differ."""
    places = {side: folder / name for name, side in (("usual", USUAL), ("datatrove", DATATROVE), ("ours", OURS))}
    inputs = [word for file in files for word in ("--input", file)]
    prep = ["-m", "launchers.cli", "prep", "run", *inputs, "--tokenizer", tokenizer, "--out", places[OURS]]
    commands = {
        USUAL: [ROOT / "benchmarks/usual_prep.py", places[USUAL], tokenizer, processes, *files],
        DATATROVE: [ROOT / "benchmarks/datatrove_prep.py", places[DATATROVE], tokenizer, processes, *files],
        OURS: [*prep, "--workers", processes],
    }
    times = []
    for number in range(1, rounds + 1):
        seconds = {}
        for side in [*commands][:: 1 if number % 2 else -1]:
            several = []
            for _ in range(OURS_A_ROUND if side == OURS else 1):
                shutil.rmtree(places[side], ignore_errors=True)
                several.append(timed(commands[side]))
            seconds[side] = statistics.median(several)
        times.append(seconds)
        print(f"{tokenizer.name}, round {number}: {seconds}", flush=True)
    ids = {ids_of_usual(places[USUAL]), ids_of_datatrove(places[DATATROVE]), ids_of_ours(places[OURS])}
    if len(ids) > 1:
        raise UserError(f"the sides gave different ids with {tokenizer}")
    totals = Dataset(places[OURS]).manifest.totals
    encoder = orjson.loads((places[OURS] / "prep/tasks/00000.json").read_bytes())["encoder"]
    stages = stages_of(files[0], tokenizer, folder)
    for place in places.values():
        shutil.rmtree(place)
    return Measured(tokenizer.name, totals.tokens, totals.documents, encoder, times, stages)


def with_pattern(tokenizer: Path, folder: Path) -> Path | None:
    """A copy of a byte-level BPE that splits text with the pattern of Llama 3; None for another tokenizer."""
    values = json.loads((tokenizer / "tokenizer.json").read_text())
    if '"type": "ByteLevel"' not in json.dumps(values["pre_tokenizer"]):
        return None
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    values |= {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}
    shutil.copytree(tokenizer, folder)
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return folder


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
        digest.update(sample["tokens.npy"].astype("u4").data)
    return digest.hexdigest()


def ids_of_datatrove(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((folder / "ids").glob("*.ds")):
        metadata = Path(f"{file}.metadata").read_text().split("|")
        digest.update(np.fromfile(file, np.dtype(f"u{metadata[-1].split()[0]}")).astype("u4").data)
    return digest.hexdigest()


def ids_of_ours(folder: Path) -> str:
    digest, dataset = hashlib.sha256(), Dataset(folder)
    for block in range(dataset.n_blocks):
        digest.update(dataset.tokens(block).astype("u4").data)
    return digest.hexdigest()


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
    shutil.rmtree(folder / "stage", ignore_errors=True)
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


def page(results: list[Measured], sizes: list[int], processes: int) -> str:
    """The result page. sizes: of the text of each file, in bytes."""
    rows, parts = [], []
    for one in results:
        medians = {side: statistics.median(each[side] for each in one.rounds) for side in one.rounds[0]}
        rates = [f"{sum(sizes) / 1e6 / medians[side]:.1f}" for side in (USUAL, DATATROVE, OURS)]
        rows.append([one.name, one.encoder, f"{one.tokens:,}", *rates])
        for rival in (USUAL, DATATROVE):
            ratios = [each[rival] / each[OURS] for each in one.rounds]
            rows[-1].append(f"{medians[rival] / medians[OURS]:.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
        parts += [f"\n## Stages, {one.name}\n", stage_table(one.stages, sizes[0])]
    titles = ["tokenizer", "encoder", "tokens", USUAL, DATATROVE, OURS, f"ours : {USUAL}", f"ours : {DATATROVE}"]
    return f"""# Preparing text: speed against the usual pipelines

MB of text per second, from the start of the command to its end, on {processes} cores: medians of
{len(results[0].rounds)} rounds, and the range of the ratios. In a round, maskwright's time is the median of
{OURS_A_ROUND} runs. {len(sizes)} files, {sum(sizes) / 1e6:,.0f} MB of text, {results[0].documents:,} documents. The ids
are equal. Maskwright also stores where words begin.

{table(titles, *rows)}

The stages are of one process on the first file ({sizes[0] / 1e6:,.0f} MB), in MB of text per second, with the speed
of the least work that a stage needs.
{chr(10).join(parts)}
"""


def stage_table(stages: Sequence[Stage], first_bytes: int) -> str:
    rate = lambda seconds: f"{first_bytes / 1e6 / seconds:,.0f}"  # noqa: E731
    rows = [[one.name, rate(one.seconds), rate(one.limit_seconds), one.limit_name] for one in stages]
    sums = [rate(sum(one.seconds for one in stages)), rate(sum(one.limit_seconds for one in stages))]
    return table(["stage", "speed", "limit", "the limit is"], *rows, ["all", *sums, ""])


if __name__ == "__main__":
    run(main)
