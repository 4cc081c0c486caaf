"""Peak memory of the processes of `maskwright prep run`, for a corpus and for eight times as much text.

    python -m benchmarks.prep_memory --input 'books/*.jsonl.zst' --tokenizer tokenizers/bert

The larger corpus has eight copies of the files. Every document is changed, so that caches of words or
documents do not help.
"""

import contextlib
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

from benchmarks.harness import ROOT, memory, options, run, table, write_page
from data_prep.common.errors import UserError
from data_prep.sources import find_inputs

SIZES = (1, 8)
WAYS = {"plain": [], "without near duplicates": ["--deduplicate", "near"]}


def main() -> None:
    parser = options(__doc__, "prep_memory")
    parser.add_argument("--input", required=True, nargs="+", help=".jsonl.zst files with a text field")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
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
            for way, words in WAYS.items():
                out = Path(folder) / f"out-{copies}-{len(words)}"
                command = ["prep", "run", "--input", text, "--tokenizer", args.tokenizer, "--out", out, *words]
                parent, worker, seconds = peaks([sys.executable, "-m", "launchers.cli", *map(str, command)])
                figures = (size / 1e6, worker, parent, seconds)
                lines.append([way, f"{copies} x", *(f"{figure:,.0f}" for figure in figures)])
                print(lines[-1], flush=True)
    page = f"""# Memory of preparing text

Peak resident memory (VmHWM) in MB of the largest worker and of the parent, {os.cpu_count()} workers.

{table(["", "corpus", "MB of text", "a worker", "parent", "seconds"], *lines, left=2)}
"""
    write_page(args.out, page, ("tokenizers", "nanotoken", "gigatoken", "numpy"))


def write_copy(file: Path, target: Path, number: int) -> int:
    """Write a copy of a file with `number` before each document and in some words; bytes of its text."""
    compressor = zstandard.ZstdCompressor(level=1)
    size = 0
    with zstandard.open(file, "rb") as lines, open(target, "wb") as out, compressor.stream_writer(out) as stream:
        for line in lines.read().split(b"\n"):
            if line:
                text = f"{number} " + orjson.loads(line)["text"].replace(" the ", f" the{number} ")
                size += stream.write(orjson.dumps({"text": text}) + b"\n")
    return size


def peaks(command: list[str]) -> tuple[float, float, float]:
    """Peak MB of the parent and of the largest other process, and seconds."""
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
    """Peak MB of a process; 0 if it has exited."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration):
        return memory("VmHWM", pid) / 1e6
    return 0.0


if __name__ == "__main__":
    run(main)
