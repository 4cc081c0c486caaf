"""Batches from prepared tokens on one core: Maskwright's stream against webdataset, mosaicml-streaming and litdata.

    maskwright prep run --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --out data/books
    maskwright prep run --input sentences.txt --separator line --tokenizer tokenizers/bert --out data/sentences
    python -m benchmarks.loader --data data/books data/sentences

Every side reads the same tokens from page cache on one core, from its own shards, shuffled, and returns batches of
numpy arrays. Documents of the other loaders are packed by Maskwright. Each measurement runs in a new process; the sides
take turns. A second epoch is counted and compared with the data set. A loader that is not installed is left out.
"""

import json
import os
import shutil
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, call, options, run, table, warn_if_busy, write_page
from benchmarks.loader_sides import BUFFER, SHARD_BYTES, SIDES, SLOTS, WINDOW_BLOCKS
from data_prep.format import Dataset

SEQ_LENS = (128, 512)
REFERENCE = "maskwright"  # the side that the others are compared with


def main() -> None:
    parser = options(__doc__, "loader")
    parser.add_argument("--data", required=True, type=Path, nargs="+", help="data set folders")
    parser.add_argument("--seq-len", type=int, nargs="+", default=SEQ_LENS)
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once; the best counts")
    args = parser.parse_args()
    warn_if_busy()
    installed = {distribution.name for distribution in distributions()}
    missing = {name: gone for name, side in SIDES.items() if (gone := {*side.packages} - installed)}
    for name, packages in missing.items():
        print(f"{SIDES[name].title} is left out: {', '.join(sorted(packages))} not installed", flush=True)
    names = [name for name in SIDES if name not in missing]
    sections = []
    with tempfile.TemporaryDirectory(prefix="loader-") as folder:
        for data in args.data:
            for seq_len in args.seq_len:
                found = rounds_of(names, data.absolute(), seq_len, args.rounds, Path(folder))
                sections.append(section(data, seq_len, found))
                print(sections[-1], flush=True)
    packages = sorted({package for name in names for package in SIDES[name].packages} | {"numpy"})
    notes = [f"{SIDES[name].title} was not installed and is left out." for name in missing]
    write_page(args.out, page(sections, args.rounds, notes), packages)


def rounds_of(names: list[str], data: Path, seq_len: int, rounds: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The best times of each side, and what it delivered."""
    best: dict[str, dict[str, Any]] = {}
    for name in names:
        write(name, data, seq_len, folder)
    for number in range(1, rounds + 1):
        for name in names:
            command = [ROOT / "benchmarks/loader_sides.py", name, data, copy_of(name, data, seq_len, folder), seq_len]
            result = json.loads(python(command, folder).splitlines()[-1])
            rates = f"{rate(result):.2f}, {rate(result, 'cpu'):.2f} by processor time"
            print(f"{data.name}, {seq_len}, round {number}: {SIDES[name].title} {rates}", flush=True)
            one = best.get(name, result)  # some shuffles differ between rounds, so slots differ by a few rows
            best[name] = result | {time: min(one[time], result[time]) for time in ("seconds", "cpu")}
    return best


def rate(result: dict[str, Any], of: str = "seconds") -> float:
    """Million tokens a second."""
    return result["tokens"] / result[of] / 1e6


def copy_of(name: str, data: Path, seq_len: int, folder: Path) -> Path:
    return folder / f"{data.name}-{name}-{seq_len if SIDES[name].per_length else 'documents'}"


def write(name: str, data: Path, seq_len: int, folder: Path) -> None:
    copy = copy_of(name, data, seq_len, folder)
    if SIDES[name].write is None or copy.exists():
        return
    copy.mkdir()
    print(f"writing {copy.name}", flush=True)
    python([ROOT / "benchmarks/loader_sides.py", "--write", name, data, copy, seq_len], folder)


def python(command: list[Any], folder: Path) -> str:
    """Output of a Python command; its caches are under `folder`."""
    temporary = folder / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "LITDATA_CACHE_DIR"):
        environment[name] = str(temporary / name)
    return call([sys.executable, *command], env=environment)


def section(data: Path, seq_len: int, found: dict[str, dict[str, Any]]) -> str:
    totals = Dataset(data).manifest.totals
    mean = totals.tokens / totals.documents
    header = ["", "million tokens/s", "Maskwright's speed", "by processor time", "slots filled", "tokens of an epoch"]
    rows = []
    for name, result in found.items():
        side = SIDES[name]
        # With rows cut across documents, nothing but tokens is in the slots.
        filled = (result["tokens"] + (0 if side.per_length else result["specials"])) / result["slots"]
        share = "all" if result["share"] == 1 else f"{result['share']:.3%}"
        faster = "" if name.startswith(REFERENCE) else f"{rate(found[REFERENCE]) / rate(result):.1f} x"
        rates = [f"{rate(result):.2f}", faster, f"{rate(result, 'cpu'):.2f}"]
        rows.append([side.title, *rates, f"{filled:.2%}", share])
    return f"""## {data.name}, rows of {seq_len}

{totals.documents:,} documents, {totals.tokens:,} tokens, {mean:,.0f} per document.

{table(header, *rows)}
"""


def page(sections: list[str], rounds: int, notes: list[str]) -> str:
    tables = "\n".join(sections)
    noted = "".join(f"{note}\n" for note in notes)
    return f"""# Reading batches: speed against other loaders

Million real tokens (no padding, no [CLS] or [SEP]) per second on one core, over an epoch, files in page cache; each
side {rounds} times in a new process, in turns, best of each. A batch has {SLOTS:,} slots: token ids, positions, and the
ends of pieces. "By processor time" does not count the time that the process waited. The last column counts the tokens
of a second epoch: "all" means exactly the data set's tokens and, from loaders of documents, exactly its documents.

- Maskwright: windows of {WINDOW_BLOCKS} blocks; each block's checksum is verified.
- webdataset: one document per sample; shards are shuffled, then samples in a buffer of {BUFFER:,}.
- mosaicml-streaming, litdata: one document per sample, their default shuffle. These three are packed with Maskwright's
  packing, {BUFFER:,} documents at a time.
- "rows", "TokensLoader": rows that were cut to one length, across documents, when the shards were written. They have no
  packing, positions, ends, [CLS] or [SEP]; another length needs another copy of the data.

The other loaders' shards have {SHARD_BYTES >> 20} MiB, so that there are several to shuffle.
{noted}
{tables}
"""


if __name__ == "__main__":
    run(main)
