"""A run resumes with other numbers of processes and ZeRO stages: the same rows, and the same losses except rounding.

The order of sums differs between layouts, so losses agree to rounding of fp32, not bitwise.
"""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.reporting import replay
from pretrain.run import JournalReader
from tests.support import runs

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4  # of the loss, over 24 steps
SETTINGS: dict[str, Any] = {
    "schedule__decay_fraction": 0.0,  # steps do not know the last
    "checkpoint__every_steps": 8,
    "train__global_batch_size": 48,  # so that 24 steps are more than an epoch
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return runs.tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> Path:
    """24 steps on two processes, ZeRO 1."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    train(data, run, steps=24, processes=2, stage=1)
    return run


def train(data: Path, run: Path, steps: int, processes: int, stage: int) -> str:
    """Train up to `steps`; what was said on stderr."""
    settings = SETTINGS | {"train__steps": steps, "zero__stage": stage}
    config = runs.write_config(run.parent / f"{run.name}.yaml", runs.tiny_config(data, run, **settings))
    done = runs.maskwright("train", config, "--procs", str(processes))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def batches(run: Path) -> dict[int, Any]:
    """Of every step, where its batch begins and its checksum."""
    return {
        entry.step: entry.batch for entry in JournalReader(run / "journal.jsonl").entries(batches=True) if entry.batch
    }


@pytest.mark.parametrize("last_stage", [0, 1])
def test_two_then_four_then_one_process_under_zero_1_3_and_another(data, unbroken, tmp_path, last_stage):
    run = tmp_path / "run"
    train(data, run, steps=8, processes=2, stage=1)
    first = run / "checkpoints/step-00000008"
    said = train(data, run, steps=16, processes=4, stage=3)
    assert "step-00000008 is resharded: processes was 2 and is 4; zero.stage was 1 and is 3" in said
    assert checkpoint.verify(first) is None, "the checkpoint itself is unchanged"
    said = train(data, run, steps=24, processes=1, stage=last_stage)
    assert f"step-00000016 is resharded: processes was 4 and is 1; zero.stage was 3 and is {last_stage}" in said
    assert_same_training(run, unbroken)
    assert_each_row_once(run, data)


@pytest.mark.parametrize(("processes", "stages"), [((2, 4, 1), (1, 1, 1)), ((2, 2, 2), (1, 3, 0))])
def test_only_processes_or_only_stages_change(data, unbroken, tmp_path, processes, stages):
    run = tmp_path / "run"
    for part, (number, stage) in enumerate(zip(processes, stages, strict=True), start=1):
        train(data, run, steps=8 * part, processes=number, stage=stage)
    assert_same_training(run, unbroken)


def assert_same_training(run: Path, unbroken: Path) -> None:
    """The same global batches, bit for bit, and losses within the tolerance."""
    wanted, found = runs.losses(unbroken), runs.losses(run)
    assert sorted(wanted) == list(range(1, 25))
    assert {step: found[step] for step in wanted} == pytest.approx(wanted, rel=TOLERANCE)
    assert wanted[24] < 0.95 * wanted[1], "it has learnt something that could differ"
    assert batches(run) == batches(unbroken)


def assert_each_row_once(run: Path, data: Path) -> None:
    """Over the first epoch, the rows that were trained on hold each document of the data set once."""
    steps = [replay(run, step) for step in range(1, 25)]
    after = next(step.position for step in steps if step.position.sources[0].epoch == 1)
    assert after.sources[0].window == 0
    left = after.dealt - after.sources[0].row  # rows of an epoch
    found: Counter[tuple[int, ...]] = Counter()
    for step in steps:
        for row in step.rows.documents(step.vocabulary)[: max(left, 0)]:
            found.update(tuple(document.original[1:-1]) for document in row)
        left -= len(step.rows)
    dataset = Dataset(data / "train")
    wanted = Counter(tuple(document) for block in range(dataset.n_blocks) for document in documents(dataset, block))
    assert tokens_in(found) == tokens_in(wanted)
    whole = [document for document in wanted if len(document) <= 10]
    assert len(whole) > 10
    for document in whole:  # longer ones may be cut
        assert found[document] == wanted[document]


def documents(dataset: Dataset, block: int) -> list[list[int]]:
    ends = dataset.document_lengths(block).cumsum()
    return [part.tolist() for part in np.split(dataset.tokens(block), ends[:-1])]


def tokens_in(documents: Counter[tuple[int, ...]]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for document, times in documents.items():
        counts.update({token: times * number for token, number in Counter(document).items()})
    return counts


def test_a_checkpoint_that_lacks_something_ends_all_processes_with_a_sentence(data, unbroken, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(unbroken, run)
    last = run / "checkpoints/step-00000024"
    forget_moments(last, "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    config = runs.tiny_config(data, run, **SETTINGS, train__steps=30, zero__stage=3)
    done = runs.maskwright("train", runs.write_config(tmp_path / "config.yaml", config), "--procs", "2")
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert f"{last}/deepspeed cannot be split for another number of processes" in errors[0]
    assert "Traceback" not in done.stderr
    assert runs.status(run)["state"] == "failed"
    assert "cannot be split for another number of processes" in runs.status(run)["reason"]
    assert checkpoint.verify(last) is None


def forget_moments(path: Path, name: str) -> None:
    """Take the moments of a group out of a file, and make the manifest agree."""
    file = path / "deepspeed" / name
    saved = torch.load(file, weights_only=False)
    del saved["optimizer_state_dict"]["base_optimizer_state"]["state"][1]
    torch.save(saved, file)
    before = checkpoint.read(path)
    entry = {"bytes": file.stat().st_size, "xxh3_128": xxhash.xxh3_128_hexdigest(file.read_bytes())}
    replace(before, files=before.files | {f"deepspeed/{name}": entry}).write()
    assert checkpoint.verify(path) is None
