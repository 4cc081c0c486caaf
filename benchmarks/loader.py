"""Batches from prepared tokens on one core: Maskwright's stream against webdataset, mosaicml-streaming and litdata.

    maskwright prep run --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert --out data/books
    maskwright prep run --input sentences.txt --separator line --tokenizer tokenizers/bert --out data/sentences
    python benchmarks/loader.py --data data/books data/sentences

Every side reads the same tokens from page cache, on one core, from shards of its own, shuffled, and gives batches of
numpy arrays. What a rival's shuffle gives as documents is packed by Maskwright's packing. Each measurement has a
process of its own; the sides take turns. A second epoch is counted and compared with the data set. A rival that is not
installed is left out. Prints a table and writes it to --out.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.loader_sides import BUFFER, SHARD_BYTES, SIDES, SLOTS, WINDOW_BLOCKS, Side
from benchmarks.machine import conditions, warn_if_busy
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset

SEQ_LENS = (128, 512)
REFERENCE = "maskwright"  # the side that the others are compared with


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, nargs="+", help="data set folders")
    parser.add_argument("--seq-len", type=int, nargs="+", default=SEQ_LENS)
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once; the best counts")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/loader.md")
    args = parser.parse_args()
    load = warn_if_busy()
    missing = {name: gone for name, side in SIDES.items() if (gone := not_installed(side))}
    for name, packages in missing.items():
        print(f"{SIDES[name].title} is left out: {', '.join(packages)} not installed", flush=True)
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
    notes += [note for package in packages if (note := unmet(package))]
    report = report_of(sections, args.rounds, notes) + conditions("loader.py", packages, load)
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def not_installed(side: Side) -> list[str]:
    gone = []
    for package in side.packages:
        try:
            version(package)
        except PackageNotFoundError:
            gone.append(package)
    return gone


def unmet(package: str) -> str:
    """What a package asks for and does not have here, in a sentence, or nothing."""
    other, gone = [], []
    for requirement in map(Requirement, requires(package) or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                found = version(requirement.name)
            except PackageNotFoundError:
                gone.append(requirement.name)
                continue
            if not requirement.specifier.contains(found, prereleases=True):
                other.append(f"{requirement.name} {found} ({requirement.specifier})")
    parts = [f"with {', '.join(other)}"] if other else []
    parts += [f"without {', '.join(gone)}"] if gone else []
    return f"Not as it asks, {package} runs {' and '.join(parts)}." if parts else ""


def rounds_of(names: list[str], data: Path, seq_len: int, rounds: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Of each side the best times, and what it delivered."""
    best: dict[str, dict[str, Any]] = {}
    for name in names:
        write(name, data, seq_len, folder)
    for number in range(1, rounds + 1):
        for name in names:
            command = [ROOT / "benchmarks/loader_sides.py", name, data, copy_of(name, data, seq_len, folder), seq_len]
            result = json.loads(python(command, folder).splitlines()[-1])
            rates = f"{rate(result):.2f}, {rate(result, 'cpu'):.2f} by processor time"
            print(f"{data.name}, {seq_len}, round {number}: {SIDES[name].title} {rates}", flush=True)
            best[name] = merged(best.get(name, result), result)
    return best


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The better of each time. Rounds differ in slots by a few rows, where a shuffle is not repeatable."""
    return other | {name: min(one[name], other[name]) for name in ("seconds", "cpu")}


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
    """What a Python command printed; what it leaves behind for caches is under `folder`."""
    temporary = folder / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER", "LITDATA_CACHE_DIR"):
        environment[name] = str(temporary / name)
    done = subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{shlex.join(map(str, command))} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def section(data: Path, seq_len: int, found: dict[str, dict[str, Any]]) -> str:
    totals = Dataset(data).manifest.totals
    mean = totals.tokens / totals.documents
    lines = [
        f"## {data.name}, rows of {seq_len}",
        "",
        f"{totals.documents:,} documents, {totals.tokens:,} tokens, {mean:,.0f} a document.",
        "",
        "| | million tokens/s | Maskwright is faster by | by processor time | slots filled | tokens of an epoch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, result in found.items():
        side = SIDES[name]
        # With rows cut across documents, nothing but tokens is in the slots.
        filled = (result["tokens"] + (0 if side.per_length else result["specials"])) / result["slots"]
        share = "all" if result["share"] == 1 else f"{result['share']:.3%}"
        faster = "" if name.startswith(REFERENCE) else f"{rate(found[REFERENCE]) / rate(result):.1f} x"
        rates = f"{rate(result):.2f} | {faster} | {rate(result, 'cpu'):.2f}"
        lines.append(f"| {side.title} | {rates} | {filled:.2%} | {share} |")
    return "\n".join(lines) + "\n"


def report_of(sections: list[str], rounds: int, notes: list[str]) -> str:
    tables = "\n".join(sections)
    noted = "".join(f"{note}\n" for note in notes)
    return f"""# Reading batches: speed against other loaders

Million real tokens (no padding, no [CLS] or [SEP]) a second on one core, over a whole epoch, files in page cache; each
side {rounds} times in a process of its own, in turns, best of each. A batch has {SLOTS:,} slots: token ids, positions,
and the ends of pieces. "By processor time" counts the seconds that the process ran, not those that it waited. In the
last column is what was delivered, counted on a second epoch: "all" is exactly the data set's tokens, and of rivals that
give documents exactly its documents.

- Maskwright: windows of {WINDOW_BLOCKS} blocks, each block's checksum verified.
- webdataset: one document a sample; shards shuffled, then samples in a buffer of {BUFFER:,}.
- mosaicml-streaming, litdata: one document a sample, their own shuffle at its defaults. These three are packed with
  Maskwright's packing, {BUFFER:,} documents at a time.
- "rows", "TokensLoader": rows that were cut to one length, across documents, when the shards were written: no
  packing, no positions, no ends, no [CLS] or [SEP], and another copy of the data for another length.

Rivals' shards have {SHARD_BYTES >> 20} MiB, so that there are some to shuffle.
{noted}
{tables}
"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
