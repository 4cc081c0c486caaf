"""Seconds from a text to a filled mask: `maskwright init`, `train` and `fill`, and how exact the estimate of `init` is.

    python -m benchmarks.first_model [--text FILE] [--minutes N] [--out FILE.md]

Each command is a new process, run once, in an empty folder that holds only the text. No file is edited.
"""

import re
import shutil
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.harness import BOOKS, maskwright, options, run, table, warn_if_busy, write_page
from pretrain.run import JournalTable, RunFolder

SENTENCE = "The little [MASK] sat down by the fire."


def main() -> None:
    parser = options(__doc__, "first_model")
    parser.add_argument("--text", type=Path, default=BOOKS, help="a file of text (default: the bundled books)")
    parser.add_argument("--minutes", type=float, help="for the training (default: what init chooses)")
    args = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory(prefix="first-model-") as folder:
        text = shutil.copy(args.text, folder)
        minutes = [] if args.minutes is None else ["--minutes", args.minutes]
        write_page(args.out, page(Path(folder), Path(text).name, minutes), ("torch", "transformers", "deepspeed"))


def page(folder: Path, text: str, minutes: list[object]) -> str:
    """Run the commands in a folder with a text. Returns the page of results."""
    commands = {
        "init": ["init", text, "--yes", *minutes],
        "train": ["train", "my-model.yaml"],
        "fill": ["fill", "runs/my-model", SENTENCE],
    }
    rows, said = [], {}
    for name, words in commands.items():
        begin = time.perf_counter()
        said[name] = maskwright(*words, cwd=folder)
        rows.append([f"`maskwright {' '.join(map(str, words))}`", f"{time.perf_counter() - begin:.1f}"])
    estimated = re.search(r"([\d.]+) minutes", said["init"])
    journal = JournalTable.read(RunFolder(folder / "runs/my-model").journal)
    losses = {name: journal.series(f"eval/{name}").values[-1] for name in ("loss", "masked_accuracy")}
    steps = journal.series("speed/step_seconds").values
    facts = [
        [
            "Model and text",
            "; ".join(line for line in said["init"].splitlines() if line.startswith(("Text:", "Model:"))),
        ],
        ["Training estimated by init, minutes", estimated[1] if estimated else "not printed"],
        ["Steps measured, minutes", f"{sum(steps) / 60:.1f}"],
        ["Held-out loss, nats a masked token", f"{losses['loss']:.3f}"],
        ["Held-out masked accuracy", f"{losses['masked_accuracy']:.1%}"],
        ["Filled", f"`{said['fill'].splitlines()[-1]}`"],
    ]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU"
    return f"""# From a text to a filled mask

On {device}. Each command is a new process, run once.

{table(["command", "seconds"], *rows)}

{table(["", ""], *facts, left=2)}"""


if __name__ == "__main__":
    run(main)
