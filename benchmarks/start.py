"""Seconds from `maskwright train` to the first step of the demo, by phase, and against another version.

    python -m benchmarks.start --rounds 5 [--other PATH/.venv/bin/maskwright] [--out FILE.md]

The data set of the demo is prepared once. Each round runs both commands as new processes with files in page cache; the
first round is not counted. The time of the first step comes from the journal.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import BOOKS, ROOT, options, ratios, spread, table, warn_if_busy, write_page
from pretrain.run import RunFolder

PROCESSES = 2
DEMO = ROOT / "configs/demo.yaml"
_PHASE = re.compile(r"^ *([\d.]+) s  (.+)$", re.MULTILINE)


def prepare(command: Path, folder: Path) -> None:
    """Make the demo's tokenizer and data sets in `folder`."""
    kind = ("--kind", "wordpiece", "--vocab-size", "4096")
    split = ("--tokenizer", folder / "tokenizer", "--valid-fraction", "0.05")
    for words in (
        ("tokenizer", "train", "--input", BOOKS, *kind, "--out", folder / "tokenizer"),
        ("prep", "run", "--input", BOOKS, *split, "--out", folder / "data"),
    ):
        subprocess.run([command, *map(str, words)], check=True, capture_output=True)


def start(command: Path, data: Path, run: Path) -> dict[str, float]:
    """Train six steps in a new run folder; return seconds to each phase, the first step and the end."""
    places = (f"run.dir={run}", f"data.train={data}/train", "data.valid=null", f"track.uri=sqlite:///{run}.db")
    words = [command, "train", DEMO, *places, "train.steps=6", "--procs", PROCESSES]
    begin = time.time()
    # In a folder without code, because `python -m` would import it.
    done = subprocess.run([str(word) for word in words], cwd=data, check=True, capture_output=True, text=True)
    seconds = {name: float(value) for value, name in _PHASE.findall(done.stderr)}
    entries = map(json.loads, RunFolder(run).journal.read_text().splitlines())
    first = next(entry["time"] for entry in entries if "train/loss" in entry["metrics"])
    return seconds | {"the first step is done": first - begin, "the command ends": time.time() - begin}


def measure(sides: dict[str, Path], rounds: int) -> dict[str, list[dict[str, float]]]:
    """The rounds of each side, without the first one."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        *_, oldest = sides.values()  # an older version may refuse newer data
        prepare(oldest, folder)
        for number in range(rounds + 1):
            for side, command in sides.items():
                seconds = start(command, folder / "data", folder / f"{side.replace(' ', '-')}-{number}")
                print(f"round {number}, {side}: first step after {seconds['the first step is done']:.1f} s", flush=True)
                if number:
                    found[side].append(seconds)
    return found


def page(found: dict[str, list[dict[str, float]]]) -> str:
    lines = [__doc__.partition("\n")[0], "", "Median, smallest and largest of the rounds, seconds since the command."]
    lines += [f"Six steps of `configs/demo.yaml` without evaluation, {PROCESSES} processes on a CPU.", ""]
    rows = []
    names = dict.fromkeys(name for rounds in found.values() for one in rounds for name in one)
    for name in names:
        cells = [_cell([one[name] for one in rounds if name in one]) for rounds in found.values()]
        label = name if name.startswith("the ") else f"begins: {name}"
        rows.append([label, *cells])
    lines.append(table(["", *found], *rows))
    if len(found) == 2:
        ours, other = ([one["the first step is done"] for one in rounds] for rounds in found.values())
        lines += ["", f"The other version takes {_cell(ratios(other, ours))} times as long to its first step."]
    return "\n".join(["# Start-up", "", *lines])


def _cell(values: list[float]) -> str:
    return spread(values, ".1f") if values else ""


def main() -> None:
    parser = options(__doc__, "start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="the `maskwright` command of another version")
    args = parser.parse_args()
    sides = {"this version": Path(sys.executable).with_name("maskwright")}
    if args.other:
        sides["the other version"] = args.other
    warn_if_busy()
    write_page(args.out, page(measure(sides, args.rounds)), ("torch", "deepspeed", "mlflow"))


if __name__ == "__main__":
    main()
