"""`maskwright config show`, also with `--diff` and `--schema`."""

import copy
import json
import subprocess
import sys

import jsonschema
import pytest
import yaml

from pretrain.config_files import load_config
from tests.support.forked import ROOT
from tests.support.in_process import invoke
from tests.support.runs import environment

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def show(*words: object) -> str:
    return invoke("config", "show", *words).stdout


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(show("--schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_config_fits_the_schema_and_is_shown_as_it_loads(path, validator, tmp_path):
    validator.validate(yaml.safe_load(path.read_text()))
    shown = show(path)
    validator.validate(yaml.safe_load(shown))
    (tmp_path / "config.yaml").write_text(shown)
    assert load_config(tmp_path / "config.yaml") == load_config(path)
    assert json.loads(show(path, "--json")) == yaml.safe_load(shown)


def test_the_schema_takes_short_forms_and_refuses_wrong_keys(validator):
    config = {"run": {"dir": "runs/r"}, "data": {"train": ["a", "b"]}, "masking": {"mlm_probability": 0.15}}
    second = {"name": "two", "steps": 3, "masking": {"rate": 0.3}, "optim": {"lr": 1e-3}}
    config |= {"train": {"global_batch_size": 8}, "phases": [{"name": "one", "steps": 3}, second]}
    validator.validate(config)
    load_config(None, [f"{name}={json.dumps(value)}" for name, value in config.items()])
    wrong = [("masking", {"ratio": 0.1}), ("train", {"steps": -1}), ("phases", [{"name": "a", "lr": 1}]), ("tain", {})]
    for section, value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(copy.deepcopy(config) | {section: value})


def test_the_difference_names_each_setting_once(tmp_path):
    base = CONFIGS[0]
    values = yaml.safe_load(base.read_text())
    values["optim"]["lr"], values["run"]["seed"] = 0.125, 99
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(values))
    found = json.loads(show(base, "--diff", other, "--json"))
    assert {name: pair[1] for name, pair in found.items()} == {"optim.lr": 0.125, "run.seed": 99}
    table = show(base, "--diff", other)
    assert "optim.lr" in table
    assert "0.125" in table
    assert show(base, "--diff", base) == "All settings are equal.\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(other.read_text())
    assert show(tmp_path / "run", "--diff", other) == "All settings are equal.\n"


def test_phases_are_compared_by_name(tmp_path):
    for name, steps in (("a", 3), ("b", 4)):
        text = f"run: {{dir: r}}\ndata: {{train: t}}\ntrain: {{}}\nphases: [{{name: only, steps: {steps}}}]\n"
        (tmp_path / f"{name}.yaml").write_text(text)
    found = json.loads(show(tmp_path / "a.yaml", "--diff", tmp_path / "b.yaml", "--json"))
    assert found == {"phases.only.steps": [3, 4], "train.steps": [3, 4]}


def test_arguments_and_files_are_utf8_in_a_locale_of_ascii(tmp_path):
    (tmp_path / "é.yaml").write_text("run: {dir: ü}\ndata: {train: x}\ntrain: {steps: 1}\n", encoding="utf-8")
    ascii_only = environment() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "launchers.cli", "config", "show", "é.yaml", "track.experiment=日本"]
    done = subprocess.run(command, env=ascii_only, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout.decode())
    assert (shown["run"]["dir"], shown["track"]["experiment"]) == ("ü", "日本")
