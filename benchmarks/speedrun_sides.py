"""The two sides of speedrun.py: text and held-out masks for both, and their runs as curves."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import harness
from benchmarks.speedrun_curves import Curve, Point
from benchmarks.speedrun_recipes import SEQ_LEN, WARMUP, Size, nested, values_of
from benchmarks.train_vs_hf import (
    BETAS,
    EPS,
    GRAD_CLIP,
    SEED,
    WEIGHT_DECAY,
    run_trainer,
    side_environment,
    trainer_settings,
    write_text,
)
from benchmarks.train_vs_hf import prepare as prepare_data
from data_prep.common.errors import UserError
from data_prep.common.files import atomic_writer
from data_prep.format import Dataset
from evaluation.likelihood.predictors import Unigram
from pretrain.config import Config
from pretrain.data import BatchStage, Loader
from pretrain.run import JournalReader

_NEVER, _ALIKE = 10**9, 0.01


@dataclass(frozen=True)
class Bench:
    """Settings of all runs; `work` holds their folders, `points` is the number of held-out losses of a run."""

    work: Path
    tokenizer: Path
    size: Size
    tokens: int
    points: int
    rows: int
    threads: int
    precision: str

    @property
    def held_out(self) -> Path:
        return self.work / "held-out.npz"


def prepare(bench: Bench, inputs: list[str], documents: int) -> None:
    """Write the text, its last fiftieth held out, as files and data sets, and the held-out masks."""
    if bench.held_out.exists():
        return
    bench.work.mkdir(parents=True, exist_ok=True)
    lines = write_text(inputs, documents, bench.work / "all.jsonl").read_text(encoding="utf-8").splitlines(True)
    cut = documents - max(1, documents // 50)
    for name, part in (("train", lines[:cut]), ("valid", lines[cut:])):
        text = bench.work / f"{name}.jsonl"
        text.write_text("".join(part), encoding="utf-8")
        shutil.rmtree(bench.work / name, ignore_errors=True)
        prepare_data(text, bench.tokenizer, bench.work / name, bench.threads)
    write_held_out(bench)


def write_held_out(bench: Bench) -> None:
    """Write the predictions of an evaluation of Maskwright for the other side: see hf_trainer.HeldOut."""
    values = values_of([], bench.size, 1e-3, bench.tokens) | shared_values(bench, bench.work)
    config = Config.model_validate(nested(values))
    loader = Loader.for_held_out(config, Dataset(bench.work / "valid"), BatchStage.of_run(config, 1), rank=0)
    batches = list(loader.held_out(0, bench.rows))
    loader.close()
    labels = [np.full(len(batch.tokens), -1) for batch in batches]
    for answers, batch in zip(labels, batches, strict=True):
        used = batch.labels >= 0
        answers[batch.masked_positions[used]] = batch.labels[used]
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches[:-1])])
    ends = [start + batch.cu_seqlens[1:] for start, batch in zip(starts, batches, strict=True)]
    tokens = [batch.tokens for batch in batches]
    with atomic_writer(bench.held_out) as file:
        np.savez(file, tokens=np.concatenate(tokens), labels=np.concatenate(labels), ends=np.concatenate(ends))


def unigram_loss(bench: Bench) -> float:
    """The held-out loss of token frequencies."""
    train = Dataset(bench.work / "train")
    with np.load(bench.held_out) as arrays:
        labels = arrays["labels"][arrays["labels"] >= 0]
    return -float(Unigram(train, train.token_counts()).log_probabilities[labels].mean())


def shared_values(bench: Bench, folder: Path) -> dict[str, Any]:
    """Config values of all of Maskwright's runs."""
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
    """A run of `maskwright train`, or its stored result."""
    values = _values(bench, ideas, lr, tokens)
    folder = folder_of(bench, name, values)
    if not _completed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        every = max(1, values["train.steps"] // bench.points)
        config = nested(values | shared_values(bench, folder) | {"eval.every_steps": every})
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        environment = side_environment(folder, bench.threads)
        harness.maskwright("train", folder / "config.yaml", "--procs", 1, cwd=folder, env=environment)
    slots = values["train.global_batch_size"] * values["data.seq_len"]
    return _printed(Curve(name, journal_points(folder / "run/journal.jsonl", slots)))


def journal_points(journal: Path, slots: int) -> tuple[Point, ...]:
    """Held-out losses of a run in rows of SEQ_LEN, by seconds without evaluations; `slots` per step."""
    points, start, evaluating, ended, seq_len = [], None, 0.0, 0.0, 0.0
    for entry in JournalReader(journal).entries():
        if "train/loss" in entry.metrics:
            ended, seq_len = entry.time, entry.metrics["data/seq_len"]
            start = ended - entry.metrics["speed/step_seconds"] if start is None else start
        if "eval/loss" in entry.metrics:
            if seq_len == SEQ_LEN and start is not None:
                seconds = ended - start - evaluating
                points.append(Point(entry.step * slots, seconds, entry.metrics["eval/loss"]))
            evaluating += entry.metrics["eval/seconds"]
    return tuple(points)


def hugging_face(bench: Bench, lr: float) -> Curve:
    """The usual recipe in transformers.Trainer."""
    size, steps = bench.size, bench.tokens // (bench.size.batch_size * SEQ_LEN)
    sizes = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    sizes["intermediate_size"] = 4 * size.hidden
    arguments = {"per_device_train_batch_size": size.batch_size, "learning_rate": lr, "logging_steps": 50}
    arguments["warmup_steps"] = round(WARMUP * steps)
    settings = trainer_settings(bench.work / "train.jsonl", bench.tokenizer, sizes, steps, arguments)
    settings |= {"held_out": str(bench.held_out), "every": max(1, steps // bench.points)}
    settings["bf16"] = bench.precision == "bf16"
    name = "usual recipe, transformers.Trainer"
    folder = folder_of(bench, name, settings)
    if not (folder / "result.json").exists():
        folder.mkdir(exist_ok=True)
        run_trainer(settings, folder, bench.threads)
    result = json.loads((folder / "result.json").read_text())
    slots = size.batch_size * SEQ_LEN
    points = [Point(point["step"] * slots, point["seconds"], point["loss"]) for point in result["points"]]
    return _printed(Curve(name, tuple(points)))


def check_alike(bench: Bench, name: str, ideas: Sequence[str], lr: float, tokens: int, loss: float) -> float:
    """The held-out loss of a run's export, as the other side measures it; the run measured `loss`.

    Raises:
        UserError: if the two sides do not measure the same.
    """
    from transformers import BertForMaskedLM

    from benchmarks.hf_trainer import HeldOut
    from pretrain.export import load_model, load_tokenizer, model_folder

    folder = model_folder(folder_of(bench, name, _values(bench, ideas, lr, tokens)) / "run")
    held_out = HeldOut(bench.held_out, load_tokenizer(folder).pad_token_id)
    found = held_out.loss(load_model(folder, BertForMaskedLM), bare=False, bf16=False)
    if abs(found - loss) > _ALIKE:
        raise UserError(f"the export has a held-out loss of {found:.4f}, the run {loss:.4f}; they must be equal")
    return found


def _values(bench: Bench, ideas: Sequence[str], lr: float, tokens: int) -> dict[str, Any]:
    return values_of(ideas, bench.size, lr, tokens) | {"train.precision": bench.precision}


def folder_of(bench: Bench, name: str, settings: dict[str, Any]) -> Path:
    """Folder of a run, which depends on its settings."""
    digest = hashlib.sha256(json.dumps([settings, bench.points, bench.rows], sort_keys=True).encode()).hexdigest()[:8]
    return bench.work / f"{'-'.join(name.replace(',', '').split())}-{digest}"


def _completed(folder: Path) -> bool:
    status = folder / "run/status.json"
    return status.exists() and json.loads(status.read_text())["state"] == "completed"


def _printed(curve: Curve) -> Curve:
    end = curve.end
    print(f"{curve.name}: {end.loss:.4f} after {end.tokens / 1e6:.2f} M tokens, {end.seconds:.0f} s", flush=True)
    return curve
