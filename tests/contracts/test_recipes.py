"""Shipped recipes: the full-size model is built, a small step runs, and the printed predictions are true."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.data import BatchStage, DeviceFeed, Loader, Sources
from pretrain.model import build, describe_model
from pretrain.optim import build_optimizer
from tests.support.datasets import make_dataset
from tests.support.forked import ROOT
from tests.support.in_process import invoke

RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
SMALL = {"layers": 2, "hidden": 32, "heads": 2}
PREDICTION = re.compile(r"^#   maskwright plan ((?:.*\\\n# +)?.*)\n#   (.*)$", re.MULTILINE)
every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def predictions(path: Path) -> list[tuple[str, str]]:
    """Figures in comments: (the words after `maskwright plan`, its result)."""
    return [(words.replace("\\\n#", " "), figures) for words, figures in PREDICTION.findall(path.read_text())]


def planned(words: str) -> dict[str, Any]:
    return json.loads(invoke("plan", *shlex.split(words), "--json").stdout)


def in_words(plan: dict[str, Any]) -> str:
    """As recipes say it: memory of a process, tokens, time."""
    (speed,) = plan["speed"]
    units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit, length = next((unit, length) for unit, length in units if speed["seconds"] >= 2 * length)
    size, bytes_of = plan["device_bytes"], (("GiB", 1 << 30), ("MiB", 1 << 20))
    prefix, whole = next((prefix, whole) for prefix, whole in bytes_of if size >= whole)
    tokens = re.sub(r"e\+0*", "e", f"{plan['tokens']:.1e}")
    memory = float(f"{size / whole:.2g}")
    return f"{memory:g} {prefix} of memory, {tokens} tokens, {speed['seconds'] / length:.0f} {unit}"


@every_recipe
def test_memory_and_time_are_what_the_plan_says_now(path):
    said = predictions(path)
    assert said, "no `maskwright plan` in the comments"
    for words, figures in said:
        plan = planned(words)
        assert words.startswith(f"configs/{path.name} ")
        assert figures == in_words(plan)
        assert plan["fits"] in (True, None)


@pytest.mark.parametrize("name", ["bert-base-24h", "bert-large-24h"])
def test_a_day_is_enough(name):
    ((words, _),) = predictions(ROOT / "configs" / f"{name}.yaml")
    assert 20 * 3600 < planned(words)["speed"][0]["seconds"] < 24 * 3600


def test_the_table_of_recipes_says_what_the_recipes_say():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = {name: row for row, name in re.findall(r"^(\| \[(.*?)\.yaml\].*)$", page, re.MULTILINE)}
    assert set(rows) == {path.stem for path in RECIPES}
    for path in RECIPES:
        memory, tokens, time = predictions(path)[0][1].split(", ")
        for figure in (memory.removesuffix(" of memory"), tokens.removesuffix(" tokens"), time):
            assert f" {figure} |" in rows[path.stem], path.stem


def small(path: Path, folder: Path) -> Config:
    """A recipe with a small model and batch, on data made here; all else is unchanged."""
    rng = np.random.default_rng(0)
    documents, words = [rng.integers(5, 300, 700).tolist() for _ in range(40)], [np.arange(700) % 2 == 0] * 40
    data = make_dataset(folder / "data", documents, 300, word_starts=words)
    recipe = load_config(path)
    sizes = ["train.global_batch_size=4", "train.micro_batch_size=2", f"model.size={json.dumps(SMALL)}"]
    changes = [f"data.train={data.path}", *sizes]
    ours = {"train.global_batch_size": 4, "train.micro_batch_size": 2, "data.train": data.path}
    for phase in recipe.phases:
        changes.append(f"phases.{phase.name}.steps=2")
        changes += [f"phases.{phase.name}.{key}={ours[key]}" for key in phase.changes if key in ours]
    return load_config(path, changes)


@every_recipe
def test_a_step_can_be_made(path, tmp_path):
    """Data, masks, model, optimizer: the weights change and stay finite."""
    config = small(path, tmp_path)
    sources = Sources.open(config)
    stages = BatchStage.of_run(config, 1)
    loader = Loader.for_training(config, sources, stages, rank=0)
    model = build(describe_model(config, sources.tokenizer), config.run.seed)
    optimizer = build_optimizer(model, config.optim)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    position = loader.mixture.start()
    for step in range(min(config.train.steps, 2 * len(config.run_phases))):
        made = loader.step(step, position)
        prediction = model(**DeviceFeed(torch.device("cpu"))(made.batches[0]).wait().inputs)
        losses = (prediction.cross_entropy / prediction.predictions).detach().numpy()
        np.testing.assert_allclose(losses, np.log(300), rtol=0.1)
        (prediction.loss / prediction.predictions.sum()).sum().backward()
        position = made.after
    loader.close()
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert any((old != new).any() for old, new in zip(before, model.parameters(), strict=True))


@every_recipe
def test_launches_that_are_named_give_scripts(path, tmp_path):
    data = make_dataset(tmp_path / "data", [[7] * 20] * 9)
    launches = re.findall(r"^#   maskwright (launch slurm .*)$", path.read_text(), re.MULTILINE)
    for words in launches:
        options = ["--dry-run", f"data.train={data.path}", "data.valid=null", "model.init=null", "model.init_size=same"]
        read = [phase.name for phase in load_config(path).phases if "data.train" in phase.changes]
        options += [f"phases.{name}.data.train={data.path}" for name in read]
        assert "#SBATCH" in invoke(*shlex.split(words), *options).stdout


def test_the_parts_of_a_model_follow_each_other():
    """A part begins with the export of the part before, of the same size, whose model its rows fit."""
    followed = 0
    for path in RECIPES:
        config, text = load_config(path), path.read_text()
        if exported := re.search(r"^#   maskwright export (\S+) --out (\S+)$", text, re.MULTILINE):
            before = next(load_config(other) for other in RECIPES if load_config(other).run.dir == Path(exported[1]))
            assert config.model.init == Path(exported[2])
            assert before.model.size == config.model.size
            assert before.model.arch == config.model.arch == "modernbert"
            assert before.run.seed != config.run.seed  # other masks, another order
            followed += 1
    assert followed == 1
