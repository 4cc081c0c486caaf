"""Peak memory of `maskwright prep run`, a process, for a corpus and for eight times as much of it.

    python benchmarks/prep_memory.py --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert

The larger corpus is eight copies of the files, in which every document is made different, so that no cache of words or
documents has an easier time. Prints a table and writes it to --out.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson
import psutil
import zstandard

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.sources import find_inputs

SIZES = (1, 8)
WAYS = {"plain": [], "without near duplicates": ["--deduplicate", "near"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, nargs="+", help=".jsonl.zst files with a text field")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/prep_memory.md")
    args = parser.parse_args()
    files = [Path(found.location) for found in find_inputs(args.input)]
    lines = []
    with tempfile.TemporaryDirectory(prefix="prep-memory-") as folder:
        text = Path(folder) / "text"
        text.mkdir()
        size = written = 0
        for copies in SIZES:
            for number in range(written, copies):
                size += sum(write_copy(file, text / f"{number}-{file.name}", number) for file in files)
            written = copies
            for way, options in WAYS.items():
                out = Path(folder) / f"out-{copies}-{len(options)}"
                command = ["prep", "run", "--input", text, "--tokenizer", args.tokenizer, "--out", out, *options]
                parent, worker, seconds = peaks([sys.executable, "-m", "launchers.cli", *map(str, command)])
                lines.append(
                    f"| {way} | {copies} x | {size / 1e6:,.0f} | {worker:,.0f} | {parent:,.0f} | {seconds:,.0f} |"
                )
                print(lines[-1], flush=True)
    table = "\n".join(lines)
    report = f"""# Memory of preparing text

Peak resident memory (VmHWM) in MB of the largest worker and of the parent, {os.cpu_count()} workers.

| | corpus | MB of text | a worker | parent | seconds |
|---|---|---:|---:|---:|---:|
{table}

"""
    report += conditions("prep_memory.py", ("tokenizers", "nanotoken", "gigatoken", "numpy"), os.getloadavg()[0])
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def write_copy(file: Path, target: Path, number: int) -> int:
    """A copy of a file with the number before each document and joined to some of its words; bytes of its text."""
    compressor = zstandard.ZstdCompressor(level=1)
    size = 0
    with zstandard.open(file, "rb") as lines, open(target, "wb") as out, compressor.stream_writer(out) as stream:
        for line in lines.read().split(b"\n"):
            if line:
                text = f"{number} " + orjson.loads(line)["text"].replace(" the ", f" the{number} ")
                size += stream.write(orjson.dumps({"text": text}) + b"\n")
    return size


def peaks(command: list[str]) -> tuple[float, float, float]:
    """MB of the parent and of the largest other process, and seconds."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found: dict[int, float] = {}
    while process.poll() is None:
        for pid in [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]:
            found[pid] = max(found.get(pid, 0.0), high_water_mark(pid))
        time.sleep(0.02)
    if process.returncode:
        assert process.stderr is not None
        raise UserError(f"{shlex.join(command)} failed:\n{process.stderr.read()[-4000:]}")
    return found.pop(process.pid), max(found.values()), time.monotonic() - begin


def high_water_mark(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1000
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0.0


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
