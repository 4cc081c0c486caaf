"""Runs of several phases: what each step is trained with, and changes before a phase begins.

tests/system/faults/test_resume.py interrupts such a run.
"""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pretrain import checkpoint
from pretrain.config_files import load_config
from pretrain.reporting import replay
from pretrain.run import RunFolder
from tests.support import runs, text_data
from tests.support.forked import ROOT
from tests.support.phase_runs import BOUNDARIES, STEPS, assert_same_training, phase_data, phase_settings


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return phase_data(tmp_path_factory.mktemp("data"))


def config_of(data: Path, run: Path, **overrides: Any) -> Path:
    return runs.config_file(data, run, **(phase_settings(data) | overrides))


def train(config: Path, *overrides: str, processes: int = 2) -> runs.Completed:
    return runs.maskwright("train", config, *overrides, "--procs", str(processes))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    return runs.trained(data, tmp_path_factory.mktemp("runs") / "whole", 2, **phase_settings(data))


def test_each_phase_is_trained_with_its_settings(whole, data):
    metrics = [entry.metrics for entry in runs.journal(whole)]
    assert [values["train/phase"] for values in metrics] == [0] * 8 + [1] * 9 + [2] * 7
    assert [values["data/seq_len"] for values in metrics] == [32] * 8 + [64] * 9 + [16] * 7
    assert [entry.batch["rows"] for entry in runs.journal(whole)] == [8] * 17 + [24] * 7
    rates = [0.3 - 0.1 * step / 16 for step in range(17)] + [0.15] * 7
    assert [values["train/mask_rate"] for values in metrics] == pytest.approx(rates)
    warmup = [2e-3 * done / 4 for done in (1, 2, 3)]
    rates = warmup + [2e-3] * 14 + [1e-3 * left / 7 for left in range(7, 0, -1)]
    assert [values["train/learning_rate"] for values in metrics] == pytest.approx(rates)
    assert ["train/loss/clm" in values for values in metrics] == [False] * 8 + [True] * 9 + [False] * 7
    epochs = {name for name in metrics[0] if name.startswith("data/epoch/")}
    assert epochs == {f"data/epoch/{data.name}", "data/epoch/other"}
    assert all(math.isfinite(values["train/loss"]) and values["train/loss"] > 0 for values in metrics)


def test_data_of_a_phase_go_on_where_an_earlier_one_stopped_or_restart(whole, data):
    positions = [entry.batch["position"]["sources"] for entry in runs.journal(whole)]
    other = [position[1] for position in positions]
    assert all((place["epoch"], place["window"], place["row"]) == (0, 0, 0) for place in other[:9])
    assert other[9]["row"] > 0
    assert all((place["epoch"], place["row"]) == (0, other[17]["row"]) for place in other[18:])  # not read any more
    first = [position[0] for position in positions]
    assert first[8]["row"] == 64
    assert first[9]["past"][0] == [32, 64]
    assert [place["epoch"] for place in first] == [0] * 18 + [1] * 6  # journals have positions before the boundary
    assert first[18]["row"] == 24


def test_every_step_is_replayed_with_the_name_of_its_phase(whole):
    for step in (1, 8, 9, 17, 18, STEPS):
        phase = replay(whole, step).phase
        assert phase == ("stable" if step < 9 else "context" if step < 18 else "decay")


def test_only_a_phase_that_has_not_begun_may_change(whole, data, tmp_path):
    run = tmp_path / "run"
    config = config_of(data, run)
    stopped = train(config, "run.stop_after=12")
    assert stopped.returncode == 75
    assert f"Rows of phase context: {data.name} 25.0%, other 75.0%" in stopped.stderr
    refused = train(config, "phases.context.masking.rate=0.4")
    assert refused.returncode == 1
    assert "phases.context.masking.rate was None and is 0.4" in refused.stderr
    moved = train(config, "phases.stable.steps=7")
    assert moved.returncode == 1
    assert "phases.context (first step) was 9 and is 8" in moved.stderr
    done = train(config, "phases.decay.masking.rate=0.4", "phases.decay.steps=3")
    assert done.returncode == 0, done.stderr
    assert "Changed before the phase begins: phases.decay.masking.rate was 0.15 and is 0.4" in done.stderr
    assert [entry.metrics["train/mask_rate"] for entry in runs.journal(run)][-3:] == [0.4] * 3


def test_phases_go_on_with_another_number_of_processes(whole, data, tmp_path):
    run = tmp_path / "run"
    for last, processes, stage in ((BOUNDARIES[0], 2, 1), (13, 1, 2), (STEPS, 1, 1)):
        done = train(config_of(data, run, zero__stage=stage), f"run.stop_after={last}", processes=processes)
        assert done.returncode == (0 if last == STEPS else 75), done.stderr
    assert_same_training(run, whole)
    answer = runs.succeed("replay", run, "--step", str(STEPS), "--diff", whole)
    assert "saw the same 24 rows" in answer.stdout


def test_a_checkpoint_has_the_rotary_base_of_its_last_step(whole):
    for step, theta in ((8, 160_000.0), (12, 1e6), (STEPS, 1e6)):
        saved = checkpoint.read(RunFolder(whole).checkpoints / f"step-{step:08}")
        assert saved.state["shape"]["rope_theta"] == theta


def test_phases_are_equal_to_the_settings_of_one_phase(data, tmp_path):
    """A recipe whose phases change nothing trains as the config without phases."""
    first = {"name": "one", "steps": 3}
    plain = {"train": {"steps": 6, "global_batch_size": 8, "precision": "fp32"}, "schedule": {"warmup_steps": 2}}
    for name, recipe in (("without", []), ("with", [first, first | {"name": "two"}])):
        settings = copy.deepcopy(plain)
        if recipe:
            del settings["train"]["steps"]
        config = config_of(data, tmp_path / name, phases=recipe, checkpoint={"every_steps": 6}, **settings)
        runs.succeed("train", config, "--procs", "1")
    assert runs.losses(tmp_path / "with") == runs.losses(tmp_path / "without")
    assert load_config(tmp_path / "with" / "config.yaml").train.steps == 6


def test_the_recipe_is_causal_first_and_fills_masks_in_the_end(tmp_path):
    """Also: checkpoints at listed steps are kept."""
    data = text_data.text_data(tmp_path / "data")
    run, sizes = tmp_path / "run", {"data.seq_len": 32, "train.global_batch_size": 8, "train.micro_batch_size": 8}
    steps = {"phases.causal.steps": 6, "phases.masked.steps": 10, "eval.every_steps": 3}
    steps |= {"checkpoint.at_steps": [3, 6], "checkpoint.every_steps": 4, "checkpoint.keep": 1}
    places = {"run.dir": run, "data.train": data / "train", "data.valid": data / "valid", "track.uri": "none"}
    small = {"model.size": "{layers: 2, hidden: 32, heads: 2}", "train.precision": "fp32", "optim.lr": 5e-3}
    changes = places | sizes | steps | small | {"schedule.warmup_steps": 2}
    recipe = ROOT / "configs/causal-then-masked.yaml"
    done = train(recipe, *(f"{key}={value}" for key, value in changes.items()), processes=1)
    assert done.returncode == 0, done.stderr
    metrics = [entry.metrics for entry in runs.journal(run)]
    rates = [values["train/mask_rate"] for values in metrics if "train/mask_rate" in values]
    assert rates == [1.0] * 6 + [0.4] * 10
    assert sorted(step for step, _ in checkpoint.committed(RunFolder(run).checkpoints)) == [3, 6, 16]
    shown = runs.maskwright("checkpoints", run)
    assert shown.stdout.count("in at_steps") == 2, shown.stdout
    for view, step, name in (
        ("causal", 6, "ModernBertDecoderForCausalLM"),
        ("bidirectional", 16, "ModernBertForMaskedLM"),
    ):
        exported = tmp_path / view
        runs.succeed("export", run, "--step", str(step), "--view", view, "--out", exported)
        assert json.loads((exported / "config.json").read_text())["architectures"] == [name]
