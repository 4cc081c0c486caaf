"""Cloze repair end to end: pairs to a data set, a run with given initial weights, its journal, its replay."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.config_files import load_config
from pretrain.data import Batch, Sources
from pretrain.masking import IGNORED
from pretrain.model import Encoder, EncoderShape, describe_model
from pretrain.model.families import hugging_face_model
from pretrain.reporting import replay
from pretrain.resuming import check_fits
from tests.support import runs, text_data
from tests.support.batches import first_batches
from tests.support.in_process import command

STEPS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data set of sentences with one wrong word each, made through the command line."""
    folder = tmp_path_factory.mktemp("pairs")
    text = text_data.corpus(folder / "text.jsonl", 300)
    tokenizer = text_data.train_tokenizer(text, folder / "tok")
    rng = np.random.default_rng(0)
    lines = []
    for right in text_data.sentences(300):
        words = right.split()
        words[int(rng.integers(len(words)))] = "wrongly"
        lines.append(json.dumps({"right": right, "wrong": " ".join(words)}))
    lines.append(json.dumps({"right": "the captain saw her letter.", "wrong": "the captain saw her letter."}))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    options = ("--text-field", "right", "--wrong-field", "wrong", "--valid-fraction", "0.1")
    out = folder / "data"
    runs.succeed("prep", "run", "--input", folder / "pairs.jsonl", "--tokenizer", tokenizer, "--out", out, *options)
    assert Dataset(out / "train").manifest.left_out() == {"unchanged": 1}
    return out


@torch.no_grad()
def loss_of(encoder: Encoder, batch: Batch) -> float:
    """The mean loss of the labels, computed apart from the trainer."""
    arrays = (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
    found = encoder.eval()(*map(torch.from_numpy, arrays), seq_len=batch.seq_len)
    return found.loss.item() / int((batch.labels >= 0).sum())


def test_fine_tuning_by_repair(data, tmp_path):
    run, init = tmp_path / "run", tmp_path / "init"
    often = {"train__steps": STEPS, "checkpoint__every_steps": 2, "eval__every_steps": 2}
    config = runs.config_file(data, run, objective="repair", masking__rate=0.2, model__init=str(init), **often)
    settings = load_config(config)
    shape = EncoderShape(**describe_model(settings, Dataset(data / "train").manifest.tokenizer))
    encoder = Encoder(shape)
    encoder.initialize(99)  # not the run's own seed
    hugging_face_model(encoder.state_dict(), shape).save_pretrained(init)
    runs.succeed("train", config, "--procs", "1")

    (batch,) = first_batches(settings, steps=1)
    labels = batch.labels[batch.labels != IGNORED]
    assert 8 <= len(labels) < 100, "a few words of eight rows"
    losses = runs.losses(run)
    assert list(losses) == [1, 2, 3, 4]
    assert losses[1] == pytest.approx(loss_of(encoder, batch), rel=1e-5), "of the weights given, over targets alone"
    assert list(runs.metric(run, "eval/loss")) == [2, 4]

    replayed = replay(run, 1)
    predictions = [p for row in replayed.rows.documents(replayed.vocabulary) for one in row for p in one.predictions]
    assert {p.kind for p in predictions} == {"mask"}
    assert len(predictions) == len(labels)
    shown = command("replay", run, "--step", "1")
    assert shown.code == 0
    assert shown.out.split("\nrow 0")[1].count("⟦") == len(labels)

    sources = Sources.open(settings)
    newest = checkpoint.read(run / f"checkpoints/step-{STEPS:08d}")
    check_fits(settings, newest, sources)
    shutil.move(init, tmp_path / "moved")  # the checkpoint needs it no more
    check_fits(settings, newest, sources)
