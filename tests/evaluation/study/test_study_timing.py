"""Equal time in a study: measured step times, and the resulting steps."""

import json
from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from evaluation.study import measure_times, write_study_report
from pretrain.config import load_config
from tests.support.study_runs import Pretended, kept, run, settings, study_config, study_data

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return study_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config(data, tmp_path):
    return study_config(tmp_path, data)


def test_steps_that_take_as_long(config):
    arms = (["token"], ["0.1", "0.2", "0.3", "0.4"], ["80/10/10"])
    study = kept(config, "train.steps=100", arms=arms, budget="time")
    seconds = {"token-0.1": [1.0, 1.0], "token-0.2": [0.7, 0.9], "token-0.3": [1.5, 1.5], "token-0.4": [500.0, 500.0]}
    (study.folder / "timing.json").write_text(json.dumps({"study": study.digest, "seconds": seconds}))
    steps = {"token-0.1": 100, "token-0.2": 125, "token-0.3": 67, "token-0.4": 1}
    assert study.equal_time_steps == steps


def test_equal_time_is_measured_first_and_each_arm_has_its_own_steps(config):
    study = kept(config, budget="both", seeds=1)
    commands = Pretended()
    run(study, commands)
    timing, rest = commands.called[:4], commands.called[4:]
    assert [settings(words)["masking"]["strategy"] for words in timing] == ["token", "span", "span", "token"]
    assert all(settings(words)["track.uri"] == "none" for words in timing)
    steps = [settings(words)["train.steps"] for words in rest if words[0] == "train"]
    assert steps == [40, 40, 50]  # a step of span takes 0.8 of token's time
    assert not list((study.folder / "timing").glob("*/"))
    assert run(study, commands)[2] == []
    write_study_report(study)
    found = json.loads((study.folder / "report.json").read_text())
    assert found["budgets"]["time"]["values"]["steps"] == {"token-0.15": {"1": 40}, "span-0.15": {"1": 50}}
    seconds = found["budgets"]["time"]["values"]["seconds"]
    assert seconds["token-0.15"]["1"] == pytest.approx(seconds["span-0.15"]["1"]) == pytest.approx(40)
    assert found["budgets"]["tokens"]["values"]["seconds"]["span-0.15"] == {"1": pytest.approx(32)}


def test_every_recipe_whose_time_can_be_measured_is_a_config_then(config):
    study = kept(config, arms=(["token"], ["0.3:0.15"], ["80/10/10"]), budget="time")
    measure_times(study, commands := Pretended(), lambda line: None)
    overrides = [word for word in commands.called[0][2:] if "=" in word]
    recipes = {path: load_config(path) for path in CONFIGS.glob("*.yaml")}
    timed = [path for path, recipe in recipes.items() if not (recipe.phases or recipe.train.batch_ramp)]
    assert {"demo.yaml", "bert-base.yaml"} < {path.name for path in timed}  # the first logs models in MLflow
    for path in timed:
        assert load_config(path, overrides).train.steps == 40


def test_two_do_not_measure_at_once(config):
    study = kept(config, budget="time", seeds=1)

    def second(line: str) -> None:
        with pytest.raises(UserError, match="another process measures the times of its arms"):
            measure_times(study, Pretended(), lambda line: None)

    measure_times(study, Pretended(), second)
    assert study.read_rounds() == {"token-0.15": [1.0, 1.0], "span-0.15": [0.8, 0.8]}


def test_a_journal_without_steps_gives_no_time(config):
    study = kept(config, budget="time", seeds=1)
    commands = Pretended()
    commands.journal_steps = 10  # as where something else wrote to the folder
    with pytest.raises(UserError, match=r"timing run of token-0\.15 has 10 steps"):
        measure_times(study, commands, lambda line: None)
    assert not (study.folder / "timing.json").exists()


def test_times_that_are_measured_are_not_measured_again_after_a_stop(config):
    study = kept(config, budget="time", seeds=1)
    commands = Pretended()
    commands.fails = lambda words: len(commands.called) == 3
    with pytest.raises(UserError, match=r"`maskwright train` ended with exit code 1: first line .*span-0\.15\.log"):
        measure_times(study, commands, lambda line: None)
    assert study.needs_timing
    write_study_report(study)
    said: list[str] = []
    measure_times(study, commands, said.append)
    assert said == [f"measuring the time of {arm}-0.15, round 2 of 2" for arm in ("span", "token")]
    assert study.read_rounds() == {"token-0.15": [1.0, 1.0], "span-0.15": [0.8, 0.8]}
    assert not study.needs_timing
