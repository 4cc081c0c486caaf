"""Seconds from `maskwright train` to the first step of the demo, by phase, and against another version.

    python benchmarks/start.py --rounds 5 [--other PATH/.venv/bin/maskwright] [--out FILE.md]

The data set of the demo is prepared once. Each round starts both commands, one after the other, as new processes with
files in page cache; the first round is not counted. The first step is the time that the journal gives for it.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import ROOT, conditions, warn_if_busy
from pretrain.run import RunFolder

PROCESSES = 2
DEMO = ROOT / "configs/demo.yaml"
TEXT = ROOT / "configs/demo/books.jsonl.zst"
_PHASE = re.compile(r"^ *([\d.]+) s  (.+)$", re.MULTILINE)


def prepare(command: Path, folder: Path) -> None:
    """Make the demo's tokenizer and data sets in `folder`."""
    kind = ("--kind", "wordpiece", "--vocab-size", "4096")
    split = ("--tokenizer", folder / "tokenizer", "--valid-fraction", "0.05")
    for words in (
        ("tokenizer", "train", "--input", TEXT, *kind, "--out", folder / "tokenizer"),
        ("prep", "run", "--input", TEXT, *split, "--out", folder / "data"),
    ):
        subprocess.run([command, *map(str, words)], check=True, capture_output=True)


def start(command: Path, data: Path, run: Path) -> dict[str, float]:
    """Train six steps in a new run folder; seconds from the command to each phase, the first step and the end."""
    places = (f"run.dir={run}", f"data.train={data}/train", "data.valid=null", f"track.uri=sqlite:///{run}.db")
    words = [command, "train", DEMO, *places, "train.steps=6", "--procs", PROCESSES]
    begin = time.time()
    # In a folder without code: processes started by `python -m` would import it.
    done = subprocess.run([str(word) for word in words], cwd=data, check=True, capture_output=True, text=True)
    seconds = {name: float(value) for value, name in _PHASE.findall(done.stderr)}
    entries = map(json.loads, RunFolder(run).journal.read_text().splitlines())
    first = next(entry["time"] for entry in entries if "train/loss" in entry["metrics"])
    return seconds | {"the first step is done": first - begin, "the command ends": time.time() - begin}


def measure(sides: dict[str, Path], rounds: int) -> dict[str, list[dict[str, float]]]:
    """The rounds of each side, after one that is not counted."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        *_, oldest = sides.values()  # an earlier version may refuse what this one prepares
        prepare(oldest, folder)
        for number in range(rounds + 1):
            for side, command in sides.items():
                seconds = start(command, folder / "data", folder / f"{side.replace(' ', '-')}-{number}")
                print(f"round {number}, {side}: first step after {seconds['the first step is done']:.1f} s", flush=True)
                if number:
                    found[side].append(seconds)
    return found


def page(found: dict[str, list[dict[str, float]]], load: float) -> str:
    """The result file."""
    lines = [__doc__.partition("\n")[0], "", "Median, smallest and largest of the rounds, seconds since the command."]
    lines += [
        f"Six steps of `configs/demo.yaml` without evaluation, {PROCESSES} processes on a CPU.",
        "",
        "| |" + " | ".join(found) + " |",
    ]
    lines.append("|---|" + "---:|" * len(found))
    names = dict.fromkeys(name for rounds in found.values() for one in rounds for name in one)
    for name in names:
        cells = [_cell([one[name] for one in rounds if name in one]) for rounds in found.values()]
        label = name if name.startswith("the ") else f"begins: {name}"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    if len(found) == 2:
        ours, other = ([one["the first step is done"] for one in rounds] for rounds in found.values())
        ratios = [b / a for a, b in zip(ours, other, strict=True)]
        lines += ["", f"The other version takes {_cell(ratios)} times as long to its first step."]
    return "\n".join(["# Start-up", "", *lines, "", conditions("start.py", ("torch", "deepspeed", "mlflow"), load)])


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="the `maskwright` command of another version")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sides = {"this version": Path(sys.executable).with_name("maskwright")}
    if options.other:
        sides["the other version"] = options.other
    load = warn_if_busy()
    text = page(measure(sides, options.rounds), load)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
