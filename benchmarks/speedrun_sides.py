"""The two sides of speedrun.py: text and held-out masks for both, and runs of each as curves."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.speedrun_curves import Curve, Point
from benchmarks.speedrun_recipes import SEQ_LEN, WARMUP, Size, nested, values_of
from benchmarks.train_vs_hf import ROOT, prep_command, run, write_text
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset
from evaluation.likelihood.predictors import Unigram, token_counts
from pretrain.config import Config
from pretrain.data import held_out_loader, stages_of
from pretrain.engine import slow_precision
from pretrain.run.journal import read_journal

SEED, BETAS, EPS, WEIGHT_DECAY, GRAD_CLIP = 7, (0.9, 0.98), 1e-6, 0.01, 1.0
_NEVER, _TRIAL_STEPS, _ALIKE = 10**9, 8, 0.01


@dataclass(frozen=True)
class Bench:
    """What all runs of a measurement share; `work` has their folders, `points` are the held-out losses of a run."""

    work: Path
    tokenizer: Path
    size: Size
    tokens: int
    points: int
    rows: int
    threads: int
    precision: str = "fp32"  # of Maskwright's runs

    @property
    def held_out(self) -> Path:
        return self.work / "held-out.npz"


def prepare(bench: Bench, inputs: list[str], documents: int) -> None:
    """The text, its last fiftieth held out, as a file and as data sets; and the held-out masks."""
    if bench.held_out.exists():
        return
    bench.work.mkdir(parents=True, exist_ok=True)
    lines = write_text(inputs, documents, bench.work / "all.jsonl").read_text(encoding="utf-8").splitlines(True)
    cut = documents - max(1, documents // 50)
    for name, part in (("train", lines[:cut]), ("valid", lines[cut:])):
        text = bench.work / f"{name}.jsonl"
        text.write_text("".join(part), encoding="utf-8")
        shutil.rmtree(bench.work / name, ignore_errors=True)
        run(prep_command(text, bench.tokenizer, bench.work / name), bench.work, bench.threads)
    write_held_out(bench)


def write_held_out(bench: Bench) -> None:
    """What an evaluation of Maskwright asks, for the other side: see speedrun_hf.HeldOut."""
    values = values_of([], bench.size, 1e-3, bench.tokens) | shared_values(bench, bench.work)
    config = Config.model_validate(nested(values))
    loader = held_out_loader(config, Dataset(bench.work / "valid"), stages_of(config, 1), rank=0)
    batches = list(loader.held_out(0, bench.rows))
    loader.close()
    labels = [np.full(len(batch.tokens), -1) for batch in batches]
    for answers, batch in zip(labels, batches, strict=True):
        used = batch.labels >= 0
        answers[batch.masked_positions[used]] = batch.labels[used]
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches[:-1])])
    ends = [start + batch.cu_seqlens[1 : batch.n_documents + 1] for start, batch in zip(starts, batches, strict=True)]
    tokens = [batch.tokens for batch in batches]
    with atomic_writer(bench.held_out) as file:
        np.savez(file, tokens=np.concatenate(tokens), labels=np.concatenate(labels), ends=np.concatenate(ends))


def unigram_loss(bench: Bench) -> float:
    """The held-out loss of a model that knows how frequent tokens are, and nothing else."""
    train = Dataset(bench.work / "train")
    with np.load(bench.held_out) as arrays:
        labels = arrays["labels"][arrays["labels"] >= 0]
    return -float(Unigram(train, token_counts(train)).log_probabilities[labels].mean())


def shared_values(bench: Bench, folder: Path) -> dict[str, Any]:
    """What all of Maskwright's runs have, whatever the recipe."""
    return {
        "run.dir": str(folder / "run"),
        "run.seed": SEED,
        "data.train": str(bench.work / "train"),
        "data.valid": str(bench.work / "valid"),
        "model.max_positions": SEQ_LEN,
        "optim.betas": list(BETAS),
        "optim.eps": EPS,
        "optim.weight_decay": WEIGHT_DECAY,
        "optim.grad_clip": GRAD_CLIP,
        "checkpoint.every_steps": _NEVER,
        "eval.rows": bench.rows,
        "eval.samples": 0,
        "track.uri": f"sqlite:///{bench.work}/mlflow.db",
    }


def maskwright(bench: Bench, name: str, ideas: Sequence[str], lr: float, tokens: int) -> Curve:
    """A run of `maskwright train`, or what it gave when it was run before."""
    values = _values(bench, ideas, lr, tokens)
    folder = folder_of(bench, name, values)
    if not _completed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        every = max(1, values["train.steps"] // bench.points)
        config = nested(values | shared_values(bench, folder) | {"eval.every_steps": every})
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "launchers.cli", "train", str(folder / "config.yaml"), "--procs", "1"]
        run(command, folder, bench.threads)
    slots = values["train.global_batch_size"] * values["data.seq_len"]
    return _told(Curve(name, journal_points(folder / "run/journal.jsonl", slots)))


def journal_points(journal: Path, slots: int) -> tuple[Point, ...]:
    """The held-out losses of a run in rows of SEQ_LEN, over seconds of which evaluations take none.

    slots: of a step.
    """
    points, start, evaluating, ended, seq_len = [], None, 0.0, 0.0, 0.0
    for entry in read_journal(journal):
        if "train/loss" in entry.metrics:
            ended, seq_len = entry.time, entry.metrics["data/seq_len"]
            start = ended - entry.metrics["speed/step_seconds"] if start is None else start
        if "eval/loss" in entry.metrics:
            if seq_len == SEQ_LEN and start is not None:
                seconds = ended - start - evaluating
                points.append(Point(entry.step * slots, seconds, entry.metrics["eval/loss"]))
            evaluating += entry.metrics["eval/seconds"]
    return tuple(points)


def hugging_face(bench: Bench, lr: float, bf16: bool, steps: int | None = None) -> Curve:
    """The usual recipe in transformers.Trainer; `steps` where it is only a trial of its speed."""
    size, whole = bench.size, bench.tokens // (bench.size.batch_size * SEQ_LEN)
    arguments: dict[str, Any] = {
        "max_steps": steps or whole,
        "per_device_train_batch_size": size.batch_size,
        "optim": "adamw_torch_fused",
        "learning_rate": lr,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": GRAD_CLIP,
        "lr_scheduler_type": "linear",
        "warmup_steps": round(WARMUP * (steps or whole)),
    }
    settings = {
        "text": str(bench.work / "train.jsonl"),
        "tokenizer": str(bench.tokenizer),
        "held_out": str(bench.held_out),
        "seq_len": SEQ_LEN,
        "rate": 0.15,
        "seed": SEED,
        "every": max(1, whole // bench.points) if steps is None else _NEVER,
        "bf16": bf16,
        "model": {
            "hidden_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "intermediate_size": 4 * size.hidden,
            "max_position_embeddings": SEQ_LEN,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    }
    name = "usual recipe, transformers.Trainer" + ("" if steps is None else f", trial {'bf16' if bf16 else 'fp32'}")
    folder = folder_of(bench, name, settings | arguments)
    if not (folder / "result.json").exists():
        folder.mkdir(exist_ok=True)
        arguments["output_dir"] = str(folder / "trainer")
        (folder / "settings.json").write_text(json.dumps(settings | {"arguments": arguments}))
        script = str(ROOT / "benchmarks/speedrun_hf.py")
        run([sys.executable, script, str(folder / "settings.json"), str(folder / "new.json")], folder, bench.threads)
        (folder / "new.json").rename(folder / "result.json")
    result = json.loads((folder / "result.json").read_text())
    if result["threads"] != bench.threads:
        raise UserError(f"transformers.Trainer ran on {result['threads']} threads, not {bench.threads}")
    slots = size.batch_size * SEQ_LEN
    points = [Point(point["step"] * slots, point["seconds"], point["loss"]) for point in result["points"]]
    return _told(Curve(name, tuple(points)))


def faster_in_bf16(bench: Bench, lr: float) -> bool:
    """Whether transformers.Trainer is faster in bf16 than in fp32 here."""
    if _slow_in_bf16():
        return False
    seconds = [hugging_face(bench, lr, bf16, _TRIAL_STEPS).end.seconds for bf16 in (False, True)]
    return seconds[1] < seconds[0]


def in_its_faster_precision(bench: Bench, lr: float) -> Bench:
    """The same for Maskwright, whose runs will be in the faster one."""
    if _slow_in_bf16():
        return replace(bench, precision="fp32")
    tokens = _TRIAL_STEPS * bench.size.batch_size * SEQ_LEN
    seconds = {}
    for precision in ("fp32", "bf16"):
        trial = replace(bench, precision=precision)
        seconds[precision] = maskwright(
            trial, f"usual recipe, Maskwright, trial {precision}", [], lr, tokens
        ).end.seconds
    return replace(bench, precision=min(seconds, key=lambda name: seconds[name]))


def check_alike(bench: Bench, name: str, ideas: Sequence[str], lr: float, tokens: int, loss: float) -> float:
    """The held-out loss of a run's export, as the other side measures it; the run itself said `loss`.

    Raises:
        UserError: if the two sides do not measure the same.
    """
    from transformers import BertForMaskedLM

    from benchmarks.speedrun_hf import HeldOut
    from pretrain.export import load_model, load_tokenizer, model_folder

    folder = model_folder(folder_of(bench, name, _values(bench, ideas, lr, tokens)) / "run")
    held_out = HeldOut(bench.held_out, load_tokenizer(folder).pad_token_id)
    found = held_out.loss(load_model(folder, BertForMaskedLM), bare=False, bf16=False)
    if abs(found - loss) > _ALIKE:
        raise UserError(f"the export has a held-out loss of {found:.4f}, the run said {loss:.4f}: they must be alike")
    return found


def _slow_in_bf16() -> bool:
    """Where a trial would only cost minutes."""
    return slow_precision("bf16", "cuda" if torch.cuda.is_available() else "cpu") is not None


def _values(bench: Bench, ideas: Sequence[str], lr: float, tokens: int) -> dict[str, Any]:
    return values_of(ideas, bench.size, lr, tokens) | {"train.precision": bench.precision}


def folder_of(bench: Bench, name: str, settings: dict[str, Any]) -> Path:
    """Of a run: other settings, another folder."""
    digest = hashlib.sha256(json.dumps([settings, bench.points, bench.rows], sort_keys=True).encode()).hexdigest()[:8]
    return bench.work / f"{'-'.join(name.replace(',', '').split())}-{digest}"


def _completed(folder: Path) -> bool:
    status = folder / "run/status.json"
    return status.exists() and json.loads(status.read_text())["state"] == "completed"


def _told(curve: Curve) -> Curve:
    end = curve.end
    print(f"{curve.name}: {end.loss:.4f} after {end.tokens / 1e6:.2f} M tokens, {end.seconds:.0f} s", flush=True)
    return curve
