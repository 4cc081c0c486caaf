"""Training speed of `maskwright train` and of `transformers.Trainer`, in real tokens a second, on this machine.

    python benchmarks/train_vs_hf.py --input books.jsonl.zst --tokenizer tokenizers/bert --rounds 3

Both train the same BERT (4 layers x 256, no dropout) on the same documents with the same optimizer and schedule, in
fp32 on CPU, each in a process of its own with the same number of threads, taking turns. Prints a table and writes it
to benchmarks/results/train_vs_hf.md.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions, warn_if_busy
from data_prep.cache import CACHE, CACHE_BYTES, Cache
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset
from data_prep.sources import Options, find_inputs
from data_prep.tokenizer import CorpusSample
from pretrain.data import Position
from pretrain.data.stream import RowStream
from pretrain.data.window import BlockReader
from pretrain.run.journal import read_journal

SEQ_LEN, BATCH_SIZE, RATE, SEED = 128, 32, 0.15, 7
LR, BETAS, EPS, WEIGHT_DECAY, GRAD_CLIP, LR_WARMUP = 5e-4, (0.9, 0.98), 1e-6, 0.01, 1.0, 10
LAYERS, HIDDEN, HEADS, INTERMEDIATE = 4, 256, 4, 1024


@dataclass(frozen=True)
class Measured:
    """One side of one round, warm-up left out: seconds, tokens by two counts, and the mean loss of its last steps."""

    seconds: float
    tokens: int  # every slot that is not padding
    text_tokens: int  # those that are not [CLS] or [SEP] either
    loss: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def text_tokens_per_second(self) -> float:
        return self.text_tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, nargs="+", help="text as for `maskwright prep run`")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
    parser.add_argument("--documents", type=int, default=1000, help="of the input, the first so many")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures both sides once")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a round")
    parser.add_argument("--skip", type=int, default=10, help="first steps that are not measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each side")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/train_vs_hf.md")
    args = parser.parse_args()
    if not LR_WARMUP <= args.skip < args.steps:
        raise UserError(f"--skip ({args.skip}) must be at least {LR_WARMUP} and less than --steps ({args.steps})")
    load = warn_if_busy()
    if find_spec("accelerate") is None:
        raise UserError("transformers.Trainer needs accelerate: pip install 'maskwright[benchmark]'")
    with tempfile.TemporaryDirectory(prefix="train_vs_hf-") as folder:
        work = Path(folder)
        text = write_text(args.input, args.documents, work / "text.jsonl")
        run(prep_command(text, args.tokenizer.absolute(), work / "data"), work, args.threads)
        rounds = []
        for number in range(1, args.rounds + 1):
            here = work / f"round-{number}"
            here.mkdir()
            hugging_face = measure_hugging_face(here, text, args)
            maskwright = measure_maskwright(here, work / "data", args)
            rounds.append((hugging_face, maskwright))
            print(f"round {number}: {speed(hugging_face)} and {speed(maskwright)} tokens/s", flush=True)
        totals = Dataset(work / "data").manifest.totals
    Console().print(table_of(rounds))
    write_report(args.out, rounds, args, f"{totals.documents:,} documents, {totals.tokens:,} tokens", load)


def write_text(inputs: list[str], documents: int, out: Path) -> Path:
    """The first documents of the inputs as one .jsonl that both sides read."""
    written = 0
    with open(out, "w", encoding="utf-8") as file:
        for text in CorpusSample(find_inputs(inputs), Options(), 10**12, Cache(CACHE, CACHE_BYTES)):
            if written == documents:
                break
            file.write(json.dumps({"text": text}) + "\n")
            written += 1
    if written < documents:
        raise UserError(f"the input has {written} documents; --documents asks for {documents}")
    return out


def prep_command(text: Path, tokenizer: Path, out: Path) -> list[str]:
    command = [sys.executable, "-m", "launchers.cli", "prep", "run", "--input", str(text)]
    return [*command, "--tokenizer", str(tokenizer), "--out", str(out)]


def measure_hugging_face(here: Path, text: Path, args: argparse.Namespace) -> Measured:
    settings = {
        "text": str(text),
        "tokenizer": str(args.tokenizer.absolute()),
        "output_dir": str(here / "hugging-face"),
        "seq_len": SEQ_LEN,
        "batch_size": BATCH_SIZE,
        "rate": RATE,
        "steps": args.steps,
        "seed": SEED,
        "lr": LR,
        "betas": BETAS,
        "eps": EPS,
        "weight_decay": WEIGHT_DECAY,
        "grad_clip": GRAD_CLIP,
        "warmup_steps": LR_WARMUP,
        "model": {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INTERMEDIATE,
            "max_position_embeddings": SEQ_LEN,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    }
    (here / "settings.json").write_text(json.dumps(settings))
    script = [sys.executable, str(ROOT / "benchmarks/hf_mlm.py"), str(here / "settings.json"), str(here / "hf.json")]
    run(script, here, args.threads)
    result = json.loads((here / "hf.json").read_text())
    if result["threads"] != args.threads or len(result["step_ends"]) != args.steps:
        raise UserError(f"transformers.Trainer did {len(result['step_ends'])} steps on {result['threads']} threads")
    rows = (args.steps - args.skip) * BATCH_SIZE
    return Measured(
        seconds=result["step_ends"][-1] - result["step_ends"][args.skip - 1],
        tokens=rows * SEQ_LEN,
        text_tokens=round(rows * SEQ_LEN * result["text_share"]),
        loss=statistics.fmean(result["losses"][-5:]),
    )


def measure_maskwright(here: Path, data: Path, args: argparse.Namespace) -> Measured:
    """Time runs from the end of the last skipped step to the end of the last step: what lies between steps counts."""
    never = 10**9
    config = {
        "run": {"dir": str(here / "maskwright"), "seed": SEED},
        "data": {"train": str(data), "seq_len": SEQ_LEN},
        "masking": {"strategy": "token", "rate": RATE},
        "model": {"arch": "bert", "size": {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS}},
        "optim": {
            "name": "adamw",
            "lr": LR,
            "betas": list(BETAS),
            "eps": EPS,
            "weight_decay": WEIGHT_DECAY,
            "grad_clip": GRAD_CLIP,
        },
        "schedule": {"kind": "linear", "warmup_steps": LR_WARMUP},
        "train": {"steps": args.steps, "global_batch_size": BATCH_SIZE, "precision": "fp32"},
        "zero": {"stage": 0},  # one process has nobody to share with
        "checkpoint": {"every_steps": never},
        "eval": {"every_steps": never},
        "track": {"uri": f"sqlite:///{here}/mlflow.db"},
    }
    (here / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "launchers.cli", "train", str(here / "config.yaml"), "--procs", "1"]
    run(command, here, args.threads)
    entries = [e for e in read_journal(here / "maskwright" / "journal.jsonl") if "train/loss" in e.metrics]
    if [entry.step for entry in entries] != [*range(1, args.steps + 1)]:
        raise UserError(f"maskwright's journal has {len(entries)} steps, not {args.steps}")
    tokens, text_tokens = tokens_of_steps(data, config, args.skip, args.steps)
    return Measured(
        seconds=entries[-1].time - entries[args.skip - 1].time,
        tokens=tokens,
        text_tokens=text_tokens,
        loss=statistics.fmean(entry.metrics["train/loss"] for entry in entries[-5:]),
    )


def tokens_of_steps(data: Path, config: dict[str, Any], first: int, last: int) -> tuple[int, int]:
    """Tokens with and without [CLS] and [SEP] in steps first .. last - 1 (from 0), counted from the rows themselves."""
    stream = RowStream(BlockReader(Dataset(data)), config["run"]["seed"], 64, "best_fit")
    _, position = stream.take(Position(), first * BATCH_SIZE, SEQ_LEN)
    parts, _ = stream.take(position, (last - first) * BATCH_SIZE, SEQ_LEN)
    lengths = np.concatenate([part.window.pieces(part.numbers)[1] for part in parts])
    return int(lengths.sum()) + 2 * len(lengths), int(lengths.sum())


def run(command: list[str], folder: Path, threads: int) -> None:
    """Run one side alone; its output is shown where it fails."""
    environment = side_environment(folder, threads)
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise UserError(f"{shlex.join(command)} failed:\n{done.stdout[-4000:]}")


def side_environment(folder: Path, threads: int) -> dict[str, str]:
    """Of a process on so many threads, with the packages of this checkout, that hears of no MLflow and no hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return environment | {"HF_DATASETS_CACHE": str(folder / "cache")}


def speed(measured: Measured) -> str:
    return f"{measured.tokens_per_second:,.0f}"


def summary(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def table_of(rounds: list[tuple[Measured, Measured]]) -> Table:
    table = Table("", "transformers.Trainer", "maskwright train", "ratio", title="Real tokens a second, no padding")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines_of(rounds):
        table.add_row(*(cell.replace(" (", "\n(") for cell in line), end_section=line[0] == f"round {len(rounds)}")
    return table


def lines_of(rounds: list[tuple[Measured, Measured]]) -> list[list[str]]:
    lines = []
    for number, (theirs, ours) in enumerate(rounds, 1):
        ratio = ours.tokens_per_second / theirs.tokens_per_second
        lines.append([f"round {number}", speed(theirs), speed(ours), f"{ratio:.2f}"])
    for name, attribute in (
        ("median (spread)", "tokens_per_second"),
        ("without [CLS], [SEP]", "text_tokens_per_second"),
    ):
        theirs_all = [getattr(theirs, attribute) for theirs, _ in rounds]
        ours_all = [getattr(ours, attribute) for _, ours in rounds]
        ratios = [ours / theirs for theirs, ours in zip(theirs_all, ours_all, strict=True)]
        ratio = statistics.median(ours_all) / statistics.median(theirs_all)
        spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append([name, summary(theirs_all), summary(ours_all), spread])
    losses = [statistics.fmean(pair[side].loss for pair in rounds) for side in (0, 1)]
    return [*lines, ["mean loss of the last 5 steps", *(f"{loss:.3f}" for loss in losses), ""]]


def write_report(
    out: Path, rounds: list[tuple[Measured, Measured]], args: argparse.Namespace, text: str, load: float
) -> None:
    rows = [["", "transformers.Trainer", "maskwright train", "ratio"], ["---", "---:", "---:", "---:"]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [*rows, *lines_of(rounds)])
    report = f"""# Training speed against transformers.Trainer

Real tokens a second; padding does not count. Medians over {len(rounds)} rounds, in which the two sides took turns.

{table}

- Model: BERT, {LAYERS} layers x {HIDDEN}, {HEADS} heads, intermediate {INTERMEDIATE}, {SEQ_LEN} positions, no dropout
  on either side; fp32 on CPU, one process, {args.threads} threads.
- Work: rows of {SEQ_LEN} tokens, {BATCH_SIZE} a step, {RATE:.0%} masked; AdamW (fused), linear schedule, gradients
  clipped to {GRAD_CLIP:g}; {args.steps} steps a round, the first {args.skip} not measured. Text: {text}.
- transformers.Trainer: the text is tokenized, concatenated and cut beforehand as in run_mlm.py, so no row has padding;
  documents share rows and see each other. DataCollatorForLanguageModeling masks.
- maskwright train: documents are packed whole or split, each piece with its own [CLS] and [SEP], and do not see each
  other; rows are masked as they are read. The time includes all that happens between steps: journal, MLflow, progress.

{conditions("train_vs_hf.py", ("torch", "transformers", "deepspeed", "datasets"), load)}"""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(out) as file:
        file.write(report.encode())


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
