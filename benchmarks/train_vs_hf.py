"""Training speed of `maskwright train` and of `transformers.Trainer`, in real tokens per second.

    python -m benchmarks.train_vs_hf --input books.jsonl.zst --tokenizer tokenizers/bert --rounds 3

Both train the same BERT (4 layers x 256, no dropout) on the same documents with the same optimizer and schedule, in
fp32 on a CPU. Each runs in its own process with the same number of threads; they take turns.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import ROOT, call, maskwright, options, ratios, run, spread, table, warn_if_busy, write_page
from data_prep.common.errors import UserError
from data_prep.format import Dataset
from data_prep.sources import Options, find_inputs
from data_prep.storage import Cache
from data_prep.tokenizer import CorpusSample
from pretrain.config import DataConfig
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.run import JournalReader

SEQ_LEN, BATCH_SIZE, RATE, SEED = 128, 32, 0.15, 7
WINDOW_BLOCKS = DataConfig.model_fields["window_blocks"].default
LR, BETAS, EPS, WEIGHT_DECAY, GRAD_CLIP, LR_WARMUP = 5e-4, (0.9, 0.98), 1e-6, 0.01, 1.0, 10
LAYERS, HIDDEN, HEADS, INTERMEDIATE = 4, 256, 4, 1024


@dataclass(frozen=True)
class Measured:
    """One side of one round without warm-up: seconds, tokens by two counts, and the mean loss of its last steps."""

    seconds: float
    tokens: int  # all slots without padding
    text_tokens: int  # without padding, [CLS] and [SEP]
    loss: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def text_tokens_per_second(self) -> float:
        return self.text_tokens / self.seconds


def main() -> None:
    parser = options(__doc__, "train_vs_hf")
    parser.add_argument("--input", required=True, nargs="+", help="text as for `maskwright prep run`")
    parser.add_argument("--tokenizer", required=True, type=Path, help="a folder with a fast tokenizer")
    parser.add_argument("--documents", type=int, default=1000, help="of the input, the first so many")
    parser.add_argument("--rounds", type=int, default=3, help="each round measures both sides once")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a round")
    parser.add_argument("--skip", type=int, default=10, help="first steps that are not measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each side")
    args = parser.parse_args()
    if not LR_WARMUP <= args.skip < args.steps:
        raise UserError(f"--skip ({args.skip}) must be at least {LR_WARMUP} and less than --steps ({args.steps})")
    warn_if_busy()
    if find_spec("accelerate") is None:
        raise UserError("transformers.Trainer needs accelerate: pip install 'maskwright[benchmark]'")
    with tempfile.TemporaryDirectory(prefix="train_vs_hf-") as folder:
        work = Path(folder)
        text = write_text(args.input, args.documents, work / "text.jsonl")
        prepare(text, args.tokenizer.absolute(), work / "data", args.threads)
        rounds = []
        for number in range(1, args.rounds + 1):
            here = work / f"round-{number}"
            here.mkdir()
            hugging_face = measure_hugging_face(here, text, args)
            maskwright = measure_maskwright(here, work / "data", args)
            rounds.append((hugging_face, maskwright))
            print(f"round {number}: {speed(hugging_face)} and {speed(maskwright)} tokens/s", flush=True)
        totals = Dataset(work / "data").manifest.totals
    text_size = f"{totals.documents:,} documents, {totals.tokens:,} tokens"
    write_page(args.out, page(rounds, args, text_size), ("torch", "transformers", "deepspeed", "datasets"))


def write_text(inputs: list[str], documents: int, out: Path) -> Path:
    """The first documents of the inputs as one .jsonl, which both sides read."""
    written = 0
    with open(out, "w", encoding="utf-8") as file:
        for text in CorpusSample(find_inputs(inputs), Options(), 10**12, Cache()):
            if written == documents:
                break
            file.write(json.dumps({"text": text}) + "\n")
            written += 1
    if written < documents:
        raise UserError(f"the input has {written} documents; --documents asks for {documents}")
    return out


def prepare(text: Path, tokenizer: Path, out: Path, threads: int) -> None:
    """Make a data set of a text file."""
    words = ("prep", "run", "--input", text, "--tokenizer", tokenizer, "--out", out)
    maskwright(*words, cwd=out.parent, env=side_environment(out.parent, threads))


def trainer_settings(
    text: Path, tokenizer: Path, model: dict[str, Any], steps: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Settings of hf_trainer.py: AdamW and a linear schedule. model: values of transformers' configuration."""
    defaults = {
        "max_steps": steps,
        "optim": "adamw_torch_fused",
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": GRAD_CLIP,
        "lr_scheduler_type": "linear",
    }
    return {
        "text": str(text),
        "tokenizer": str(tokenizer),
        "save_at": [],
        "bf16": False,
        "seq_len": SEQ_LEN,
        "rate": RATE,
        "seed": SEED,
        "model": model,
        "arguments": defaults | arguments,
    }


def run_trainer(settings: dict[str, Any], folder: Path, threads: int) -> dict[str, Any]:
    """Run hf_trainer.py in `folder`, which holds result.json afterwards."""
    settings["arguments"]["output_dir"] = str(folder / "trainer")
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "benchmarks.hf_trainer", folder / "settings.json", folder / "new.json"]
    call(command, cwd=folder, env=side_environment(folder, threads))
    (folder / "new.json").rename(folder / "result.json")
    result = json.loads((folder / "result.json").read_text())
    if result["threads"] != threads:
        raise UserError(f"transformers.Trainer ran on {result['threads']} threads, not {threads}")
    return result


def measure_hugging_face(here: Path, text: Path, args: argparse.Namespace) -> Measured:
    model = {"model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    model |= {"intermediate_size": INTERMEDIATE, "max_position_embeddings": SEQ_LEN}
    model |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    arguments = {"per_device_train_batch_size": BATCH_SIZE, "learning_rate": LR, "warmup_steps": LR_WARMUP}
    arguments["logging_steps"] = 1
    settings = trainer_settings(text, args.tokenizer.absolute(), model, args.steps, arguments)
    result = run_trainer(settings, here, args.threads)
    if len(result["step_ends"]) != args.steps:
        raise UserError(f"transformers.Trainer did {len(result['step_ends'])} steps, not {args.steps}")
    rows = (args.steps - args.skip) * BATCH_SIZE
    return Measured(
        seconds=result["step_ends"][-1] - result["step_ends"][args.skip - 1],
        tokens=rows * SEQ_LEN,
        text_tokens=round(rows * SEQ_LEN * result["text_share"]),
        loss=statistics.fmean(result["losses"][-5:]),
    )


def measure_maskwright(here: Path, data: Path, args: argparse.Namespace) -> Measured:
    """Time from the end of the last skipped step to the end of the last step, with the work between steps."""
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
        "zero": {"stage": 0},
        "checkpoint": {"every_steps": never},
        "eval": {"every_steps": never},
        "track": {"uri": f"sqlite:///{here}/mlflow.db"},
    }
    (here / "config.yaml").write_text(yaml.safe_dump(config))
    environment = side_environment(here, args.threads)
    maskwright("train", here / "config.yaml", "--procs", 1, cwd=here, env=environment)
    entries = [e for e in JournalReader(here / "maskwright" / "journal.jsonl").entries() if "train/loss" in e.metrics]
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
    stream = RowStream(BlockReader(Dataset(data)), config["run"]["seed"], WINDOW_BLOCKS, "best_fit")
    _, position = stream.take(Position(), first * BATCH_SIZE, SEQ_LEN)
    parts, _ = stream.take(position, (last - first) * BATCH_SIZE, SEQ_LEN)
    lengths = np.concatenate([part.window.pieces(part.numbers)[1] for part in parts])
    return int(lengths.sum()) + 2 * len(lengths), int(lengths.sum())


def side_environment(folder: Path, threads: int) -> dict[str, str]:
    """Environment of a process with `threads` threads and this checkout, without MLflow settings and the hub."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return environment | {"HF_DATASETS_CACHE": str(folder / "cache")}


def speed(measured: Measured) -> str:
    return f"{measured.tokens_per_second:,.0f}"


def rows_of(rounds: list[tuple[Measured, Measured]]) -> list[list[str]]:
    rows = []
    for number, (theirs, ours) in enumerate(rounds, 1):
        ratio = ours.tokens_per_second / theirs.tokens_per_second
        rows.append([f"round {number}", speed(theirs), speed(ours), f"{ratio:.2f}"])
    counts = {"median (spread)": "tokens_per_second", "without [CLS], [SEP]": "text_tokens_per_second"}
    for name, attribute in counts.items():
        sides = [[getattr(pair[side], attribute) for pair in rounds] for side in (0, 1)]
        ratio = statistics.median(sides[1]) / statistics.median(sides[0])
        each = ratios(sides[1], sides[0])
        faster = f"{ratio:.2f} ({min(each):.2f} to {max(each):.2f})"
        rows.append([name, *(spread(side, ",.0f") for side in sides), faster])
    losses = [statistics.fmean(pair[side].loss for pair in rounds) for side in (0, 1)]
    return [*rows, ["mean loss of the last 5 steps", *(f"{loss:.3f}" for loss in losses), ""]]


def page(rounds: list[tuple[Measured, Measured]], args: argparse.Namespace, text: str) -> str:
    return f"""# Training speed against transformers.Trainer

Real tokens per second, without padding. Medians of {len(rounds)} rounds; the two sides take turns.

{table(["", "transformers.Trainer", "maskwright train", "ratio"], *rows_of(rounds))}

- Model: BERT, {LAYERS} layers x {HIDDEN}, {HEADS} heads, intermediate {INTERMEDIATE}, {SEQ_LEN} positions, no dropout
  on either side; fp32 on a CPU, one process, {args.threads} threads.
- Work: rows of {SEQ_LEN} tokens, {BATCH_SIZE} per step, {RATE:.0%} masked; AdamW (fused), linear schedule, gradients
  clipped to {GRAD_CLIP:g}; {args.steps} steps per round, the first {args.skip} not measured. Text: {text}.
- transformers.Trainer: the text is tokenized, concatenated and cut before, as in run_mlm.py, so no row has padding.
  Documents share rows and see each other. DataCollatorForLanguageModeling masks.
- maskwright train: documents are packed whole or split, each piece with its own [CLS] and [SEP], and do not see each
  other; rows are masked as they are read. The time includes the work between steps: journal, MLflow, progress.
"""


if __name__ == "__main__":
    run(main)
