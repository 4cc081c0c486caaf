"""Layers of a masked and a causal model of the same text, which differ only in the objective.

    python -m benchmarks.layers --input 'books/*.jsonl.zst'

It runs maskwright's commands: a tokenizer, a data set, two trainings, their exports, and `analyze layers` with natural
and with shuffled text. Run the same command again to resume. With the --work of books.py it uses that text, and can
also analyze its model: --also models/pretrained.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.books import maskwright, prepare
from benchmarks.books_page import held_out_losses
from benchmarks.harness import options, run, table, write_page

SEQ_LEN = 128
CONFIG: dict[str, Any] = {
    "data": {"train": "data/train", "valid": "data/valid", "seq_len": SEQ_LEN},
    "model": {"arch": "modernbert", "size": {"layers": 6, "hidden": 192, "heads": 3, "intermediate": 288}},
    "optim": {"name": "muon", "lr": 2e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
    "schedule": {"kind": "wsd", "warmup_steps": 50, "decay_fraction": 0.4},
    "train": {"steps": 700, "global_batch_size": 32, "micro_batch_size": 16, "precision": "fp32"},
    "checkpoint": {"every_steps": 100, "keep": 1},
    "eval": {"every_steps": 100, "rows": 256},
    "track": {"uri": "none"},
}
OBJECTIVES: dict[str, dict[str, Any]] = {"mlm": {"masking": {"rate": 0.15}}, "clm": {"objective": "clm"}}


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args)
    for name, own in OBJECTIVES.items():
        train(args, name, CONFIG | own)
    models = [f"models/{name}" for name in OBJECTIVES] + args.also
    text = ["--data", "data/valid", "--seq-len", str(SEQ_LEN), "--shuffled-ngrams", "1"]
    maskwright(args, "analyze", "layers", *models, *text, "--out", "layers", "--json", "layers.json")
    report(args)


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "layers")
    parser.add_argument("--input", required=True, type=Path, help="a file of text, or a quoted glob")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--also", nargs="*", default=[], help="models of the same tokenizer, as paths in --work")
    parser.add_argument("--procs", type=int, default=1, help="processes of one thread")
    parser.add_argument("--work", type=Path, default=Path("runs/books"), help="folder of data, runs and models")
    args = parser.parse_args()
    args.input, args.work = args.input.absolute(), args.work.absolute()  # commands run in --work
    return args


def train(args: argparse.Namespace, name: str, config: dict[str, Any]) -> None:
    """Train and export models/NAME in --work, unless it exists."""
    if (args.work / "models" / name).exists():
        return
    file = args.work / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"run": {"dir": f"runs/{name}", "seed": 0}} | config))
    maskwright(args, "train", file.name, "--procs", str(args.procs))
    maskwright(args, "export", f"runs/{name}", "--out", f"models/{name}")


def report(args: argparse.Namespace) -> None:
    found = json.loads((args.work / "layers.json").read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("similarity", "information"):
        shutil.copyfile(args.work / f"layers/{kind}.png", args.out.with_name(f"{args.out.stem}_{kind}.png"))
    losses = {name: held_out_losses(args.work / "runs" / name) for name in OBJECTIVES}
    curves = table(
        ["held-out loss (nats) after step", *(f"{step:,}" for step in losses["mlm"])],
        *([name, *(f"{loss:.3f}" for loss in of.values())] for name, of in losses.items()),
    )
    size, steps = CONFIG["model"]["size"], CONFIG["train"]["steps"]
    page = f"""# Layers of a masked and of a causal model

ModernBERTs of {size["layers"]} layers x {size["hidden"]}, trained on books for {steps} steps of \
{CONFIG["train"]["global_batch_size"]} rows of {SEQ_LEN} tokens, from one seed, with the masked
and with the causal objective; all else is equal. The two losses measure different tasks and cannot be compared. There
is one training run each, so the results describe these models, not the objectives.

{curves}

![Similarity of consecutive layers]({args.out.stem}_similarity.png)

![Information of layers about tokens]({args.out.stem}_information.png)

[docs/analysis.md](../../docs/analysis.md) explains the measures, the intervals and the results.

## Consecutive layers

{found["settings"]["positions"]:,} positions of each kind; ± half of the 95% interval.

{similarities(found["models"])}

## Share of the token's entropy in clusters of states

For the {found["settings"]["tokens"]} most frequent tokens, by {found["settings"]["clusters"]} clusters; layer 0 is the
\
embeddings.

{information(found["models"])}
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


def similarities(models: dict[str, Any]) -> str:
    depth = max(model["layers"] for _, _, model in texts(models))
    header = ["model", "text", "positions", "measure", *(f"{n} and {n + 1}" for n in range(depth)), "chance"]
    rows = [
        [name, text, one["kind"], one["measure"], *padded(one["between"], depth), f"{max(one['chance']):.3f}"]
        for name, text, model in texts(models)
        for one in model["similarities"]
    ]
    return table(header, *rows)


def information(models: dict[str, Any]) -> str:
    depth = max(model["layers"] for _, _, model in texts(models))
    header = ["model", "text", "token, position", "positions", *map(str, range(depth + 1))]
    rows = [
        [name, text, f"{one['of']}, {one['kind']}", f"{one['positions']:,}", *padded(one["at"], depth + 1)]
        for name, text, model in texts(models)
        for one in model["information"]
    ]
    return table(header, *rows)


def texts(models: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each model in each text."""
    for name, by_text in models.items():
        for text, model in by_text.items():
            yield Path(name).name, text, model


def padded(estimates: list[dict[str, float]], width: int) -> list[str]:
    cells = [f"{one['value']:.3f} ± {one['high'] - one['value']:.3f}" for one in estimates]
    return cells + [""] * (width - len(cells))


if __name__ == "__main__":
    run(main)
