"""Metrics of a run: documented names, without padding, without an effect on the results."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from pretrain.reporting import collect, replay, summarize
from pretrain.run import Entry, JournalReader, RunFolder
from pretrain.tracking import RunRecord, run_page
from tests.support import runs
from tests.support.datasets import SPECIAL_IDS, make_dataset
from tests.support.forked import ROOT
from tests.system.soak.soak import assert_same_checkpoint

STEPS = 12
WATCHED = {"track__system_seconds": 0.1, "train__profile": {"steps": [3, 7]}}
UNWATCHED = {"track__system_seconds": 0, "eval__samples": 0}
SETTINGS = {"train__steps": STEPS, "checkpoint__every_steps": 6, "eval__every_steps": 6, "optim__ema": 0.9}
SETTINGS |= {"data__damage_budget": 100}
# Documented, but not of a healthy run of one phase and one data set on a CPU.
ELSEWHERE = {
    *("speed/mfu", "train/phase", "data/epoch/NAME", "train/skipped", "train/spike", "train/rollback_to"),
    *("train/loss/NAME", "train/masked_accuracy/NAME", "eval/loss/NAME", "eval/masked_accuracy/NAME"),
    "eval/source_loss/NAME",
    *("train/rows_left_out", "checkpoint/failed", "checkpoint/remote_failed"),
    *(f"system/HOST/gpuN_{what}" for what in ("utilization_percent", "memory_percent", "power_watts")),
    "system/HOST/gpuN_temperature_celsius",
}
PLACEHOLDERS = {"HOST": r"[^/]+", "NAME": r"[^/]+", "N": r"\d+"}


def documented() -> set[str]:
    """The first column of the table of metrics in docs/tracking.md."""
    _, journal = (ROOT / "docs/tracking.md").read_text().split("## The journal")
    rows = re.findall(r"^\| (`\w+/.*?) \|", journal, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def pattern(name: str) -> re.Pattern[str]:
    """The names that a documented name covers."""
    parts = re.split(r"(HOST|NAME|N(?![A-Z]))", name)
    return re.compile("".join(PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> tuple[RunFolder, str]:
    """A run of two processes with all measurements, and its output."""
    return _train(tmp_path_factory.mktemp("watched"), WATCHED)


@pytest.fixture(scope="module")
def entries(watched) -> list[Entry]:
    return JournalReader(watched[0].journal).entries(batches=True)


def _data(folder: Path) -> None:
    """Documents that fit into a row of 32 slots once but not twice, so that rows are padded."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 200), ("valid", 30)):
        documents = [rng.integers(5, runs.VOCAB_SIZE, size=20).tolist() for _ in range(count)]
        make_dataset(folder / name, documents, runs.VOCAB_SIZE, block_tokens=4000)


def _train(folder: Path, settings: dict, *overrides: str) -> tuple[RunFolder, str]:
    if not (data := folder / "data").exists():
        _data(data)
    config = runs.config_file(data, folder / "run", **SETTINGS, **settings)
    done = runs.succeed("train", config, *overrides, "--procs", "2")
    return RunFolder(folder / "run"), done.stderr


def test_what_a_run_writes_is_documented_and_what_is_documented_is_written(entries):
    written = {name for entry in entries for name in entry.metrics}
    patterns = {name: pattern(name) for name in documented()}
    assert not {name for name in written if not any(p.fullmatch(name) for p in patterns.values())}
    missing = {name for name, p in patterns.items() if not any(p.fullmatch(metric) for metric in written)}
    assert missing == ELSEWHERE


def test_mlflow_gets_inputs_parameters_the_page_and_few_series(watched, entries):
    folder, said = watched
    record = RunRecord.load(folder.path)
    client = MlflowClient(record.uri)
    run = client.get_run(record.run_id)
    inputs = {logged.dataset.name: logged for logged in run.inputs.dataset_inputs}
    uses = {name: logged.tags[0].value for name, logged in inputs.items()}
    assert uses == {"data/train": "training", "data/valid": "eval"}
    fingerprint = json.loads((folder.path.parent / "data/train/manifest.json").read_text())["fingerprint"]
    assert fingerprint.startswith(inputs["data/train"].dataset.digest)
    assert json.loads(inputs["data/train"].dataset.profile)["documents"] == 200
    assert run.info.status == "FINISHED"
    params, tags = run.data.params, run.data.tags
    assert (tags["steps"], params["optimizer"], params["precision"]) == (str(STEPS), "adamw", "fp32")
    assert f"`maskwright export {folder.path}`" in tags["mlflow.note.content"]
    assert {name.split("/")[0] for name in run.data.metrics} == {"eval", "train", "system"}, "the order of the charts"
    assert params["schedule"].startswith("wsd")
    assert int(params["parameters"]) > 10_000
    assert {file.path for file in client.list_artifacts(record.run_id)} >= {"report.html", "config.yaml"}
    (host,) = {name.split("/")[1] for entry in entries for name in entry.metrics if name.startswith("system/")}
    assert {"system/cpu_percent_mean", "system/memory_percent_mean"} <= set(run.data.metrics)
    assert not [name for name in run.data.metrics if host in name]
    assert f"MLflow: {run_page(folder.path)}" in said
    assert summarize(folder.path).mlflow_page == run_page(folder.path)


def test_rates_leave_out_padding(watched, entries):
    folder, _ = watched
    padded = 0
    for entry in entries[::4]:
        rows = replay(folder.path, entry.step).rows
        real = int((rows.original != SPECIAL_IDS["pad"]).sum())
        counted = entry.metrics["speed/tokens_per_second"] * entry.metrics["speed/step_seconds"]
        assert counted == pytest.approx(real, rel=1e-9)
        padded += rows.original.size - real
    assert padded, "no padding, so that rates with it would pass"


def test_nothing_that_is_measured_changes_a_result(watched, tmp_path):
    folder, _ = _train(tmp_path, UNWATCHED)
    assert runs.losses(folder.path) == runs.losses(watched[0].path)
    assert_same_checkpoint(folder, watched[0], STEPS)
    assert not folder.system.exists()
    assert not folder.profile.exists()
    assert (watched[0].path / "predictions.jsonl").exists()
    assert not (folder.path / "predictions.jsonl").exists()
    assert collect(folder.path, tmp_path / "page.html")["predictions"] is None


def test_a_profile_is_a_trace_a_rank_and_a_table_printed_once(watched):
    folder, output = watched
    table = (folder.profile / "steps-3-7.txt").read_text()
    assert output.count(table.splitlines()[0]) == 1
    parts = {line.split()[0] for line in table.splitlines() if line.endswith(" ms")}
    assert parts >= {"forward", "backward", "reduction", "optimizer", "evaluation", "checkpoint"}
    assert len([*folder.profile.glob("steps-3-7-rank-0000?.json.gz")]) == 2
    assert "\x1b" not in output


def test_a_resumed_run_says_that_the_profile_is_past(watched):
    folder, _ = watched
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.profile.iterdir())
    _, output = _train(folder.path.parent, WATCHED, "train.steps=13")
    assert output.count("train.profile: steps 3 to 7 are past, so that nothing is profiled\n") == 1
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.profile.iterdir()) == before
