"""Config files and overrides: unusable files, the types of YAML, and saved configs that are read again."""

import gzip
import re
from pathlib import Path

import pytest
import yaml

from data_prep.common.errors import UserError
from pretrain.config.model import PRESETS, SizeConfig
from pretrain.config_files import as_yaml, load_config, save_config
from tests.support.configs import LEAST, refusal
from tests.support.hostile_json import DIGITS, NESTED


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("run: {dir: x\n", "line 2 is not valid YAML: a bracket or brace is not closed. Close it."),
        ("run:\n\tdir: x\n", "line 2 is not valid YAML: a tab stands where YAML wants spaces. Indent with spaces."),
        ("run:\n  dir: a: b\n", "line 2 is not valid YAML: a colon stands inside a value. Put the value in quotes"),
        ("run:\n    dir: x\n  seed: 1\n", "line 3 is not valid YAML: the indentation does not match the lines above."),
        ("run: {dir: 'x}\n", "line 2 is not valid YAML: a quote is not closed."),
        ("run: {dir: @x}\n", "line 1 is not valid YAML: a value begins with a character that has a meaning in YAML."),
        ("run: {dir: *x}\n", "line 1 is not valid YAML: a value begins with *. Put it in quotes."),
        ("a\0b", "is not valid YAML: it has control characters. Name a text file."),
        ("- a\n- b\n", "has no sections. A config has sections such as run:, data: and train:"),
        ("", "is empty. A config has sections"),
        ("run: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("train: {steps: 2024-02-31}\n", "a date or number in it cannot be read"),
        (f"train: {{steps: {DIGITS}}}\n", "cannot be read"),
        (f"train: {NESTED}\n", "cannot be read"),
    ],
)
def test_unusable_file(write, content, wanted):
    assert wanted in refusal(write(content))


@pytest.mark.parametrize(
    ("content", "key", "lines"),
    [
        ("run: {dir: a}\ndata: {train: x}\ntrain:\n  steps: 1\n  precision: fp32\n  steps: 2\n", "steps", (4, 6)),
        ('train: {steps: 1}\nrun: {dir: a}\ndata: {train: x}\n"train": {steps: 2}\n', "train", (1, 4)),
        ("run: {dir: a}\ndata: {train: [{path: x,\n path: y}]}\ntrain: {steps: 1}\n", "path", (2, 3)),
        ("run: {dir: a, dir: b}\ndata: {train: x}\ntrain: {steps: 1}\n", "dir", (1, 1)),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_both_lines(write, content, key, lines):
    message = refusal(write(content))
    assert f"config.yaml: key {key!r} is given twice, in lines {lines[0]} and {lines[1]}. Remove one of them" in message


def test_a_key_that_is_given_twice_in_a_profile_or_an_override(write, tmp_path):
    profile = tmp_path / "site.yaml"
    profile.write_text("partition: a\nenvironment:\n  X: 1\n  X: 2\n")
    with pytest.raises(UserError, match=r"site.yaml: key 'X' is given twice, in lines 3 and 4\."):
        load_config(write(LEAST), [], profile)
    twice = "train={steps: 1, steps: 2}"
    assert f"override '{twice}': key 'steps' is given twice" in refusal(write(LEAST), twice)


def test_yaml_merge_keys_are_no_repeated_keys(write):
    path = write(
        "run: {dir: x}\ndata: {train: x}\ntrain: {steps: 1}\n"
        "deepspeed: {a: {inner: &base {x: 1, y: 1}}, b: &more {<<: *base, y: 2}, c: {<<: *more, y: 3}}\n"
    )
    assert load_config(path).deepspeed["c"] == {"x": 1, "y": 3}


def test_missing_file_and_folder(tmp_path):
    missing = f"No config file at {tmp_path}/none.yaml. "
    assert refusal(tmp_path / "none.yaml") == missing + "Correct the path; configs/ has examples."
    (tmp_path / "one.yaml").touch()
    assert refusal(tmp_path / "none.yaml") == missing + f"Did you mean {tmp_path}/one.yaml?"
    assert refusal(tmp_path) == f"{tmp_path} is a folder, not a config file. Name a YAML file."
    (tmp_path / "config.yaml").touch()
    assert refusal(tmp_path) == f"{tmp_path} is a folder, not a config file. Name {tmp_path}/config.yaml."
    with pytest.raises(UserError, match=re.escape(f"No config file at x/c.yaml (working directory: {Path.cwd()}).")):
        load_config(Path("x/c.yaml"))


def test_a_file_that_is_not_text_and_one_from_windows(tmp_path):
    """Which has a byte order mark, and line ends of two characters."""
    path = tmp_path / "c.yaml"
    path.write_bytes(gzip.compress(b"run: {}"))
    assert refusal(path) == f"{path} is not text in UTF-8. Name a YAML file, or save it as UTF-8."
    path.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(LEAST).replace("\n", "\r\n").encode())
    assert load_config(path).train.steps == 10


def test_overrides_have_yaml_types(write):
    overrides = ["optim.lr=5e-4", "optim.betas=[0.8, 0.9]", "data.valid=data/v", "run.allow_changes=true"]
    overrides += ["model.size=tiny", "model.max_positions=256", "masking.replacement.mask=0.5"]
    overrides += ["deepspeed.zero_optimization.overlap_comm=false", "train.steps=20", "train.steps=3e1"]
    overrides += ["run.seed='7'", "eval.rows=1_000"]
    config = load_config(write(LEAST), overrides)
    assert config.optim.lr == 5e-4
    assert config.optim.betas == (0.8, 0.9)
    assert config.data.valid == "data/v"
    assert config.run.allow_changes is True
    assert config.model.size == SizeConfig(**PRESETS["bert"]["tiny"])
    assert (config.masking.replacement.mask, config.masking.replacement.random) == (0.5, 0.1)
    assert config.deepspeed == {"zero_optimization": {"overlap_comm": False}}
    assert config.train.steps == 30, "the last override counts"
    assert (config.run.seed, config.eval.rows) == (7, 1000)
    assert load_config(write(LEAST), ["data.valid=null"]).data.valid is None


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "0.5e-3", "+5e-4", ".5e-3", "5.e-4", "0.0005"])
def test_learning_rates_are_numbers(write, text):
    path = write(f"run: {{dir: x}}\ndata: {{train: x}}\ntrain: {{steps: 1}}\ndeepspeed: {{raw: {text}}}\n")
    config = load_config(path, [f"optim.lr={text}"])
    assert config.optim.lr == 5e-4
    assert config.deepspeed == {"raw": 5e-4}, "not a string, where no type of ours would turn it into a number"


def test_an_override_reaches_into_an_empty_section(write):
    path = write("run: {dir: x}\ndata: {train: x}\ntrain: {steps: 1}\noptim:\n")
    assert load_config(path, ["optim.lr=0.1"]).optim.lr == 0.1


def test_times_of_day_are_no_numbers(write):
    path = write("{run: {dir: 16}, data: {train: d}, train: {steps: 1_000}, cluster: {time: 24:00:00, account: 017}}")
    config = load_config(path, ["run.seed=0x10"])
    assert (config.cluster.time, config.train.steps, config.run.seed) == ("24:00:00", 1000, 16)
    assert load_config(path, ["cluster.time=90"]).cluster.time == "90"


WRITTEN = ["0123", "2.10", "1e3", "0x1F", "12:30:45", "2026-11-27", "on", "=", ".5"]


def _texts(config):
    """The values of text keys: single values, items of lists, values of mappings, paths, and those of a phase."""
    cluster, data, late = config.cluster, config.data, config.run_phases[-1].config
    texts = [cluster.account, *cluster.modules, *cluster.environment.values(), cluster.container.image]
    texts += [config.track.experiment, config.run.dir, data.cache_dir, data.valid, config.run_phases[0].name]
    return [str(text) for text in [*texts, *(source.path for run in (config, late) for source in run.data.train)]]


@pytest.mark.parametrize("text", WRITTEN)
def test_text_keys_take_a_value_as_it_is_written(write, tmp_path, text):
    name = text if text.isalnum() else "a"  # of a phase, which has fewer characters
    path = write(
        f"run: {{dir: {text}}}\ndata: {{train: [{{path: {text}}}, {text}], valid: {text}, cache_dir: {text}}}\n"
        f"train: {{precision: fp32}}\nzero: {{stage: 0}}\ntrack: {{experiment: {text}}}\n"
        f"phases: [{{name: {name}, steps: 5}}, {{name: b, steps: 5, data: {{train: {text}}}}}]\n"
        f"cluster: {{account: {text}, modules: [cuda, {text}], environment: {{A: {text}}},\n"
        f" container: {{image: {text}}}}}\n"
    )
    config = load_config(path)
    assert set(_texts(config)) == {text, name, "cuda"}
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config
    assert yaml.safe_load((tmp_path / "saved.yaml").read_text())["cluster"]["account"] == text
    profile = tmp_path / "site.yaml"
    profile.write_text(f"reservation: {text}\n")
    keys = ["cluster.account", "cluster.environment.A", "phases.b.data.train", "phases.1.data.train", "run.dir"]
    changed = load_config(
        write(LEAST | {"train": {}, "phases": [{"name": "a", "steps": 5}, {"name": "b", "steps": 5}]}),
        [*(f"{key}={text}" for key in keys), f"cluster.modules=[{text}]", f"phases.b.data.train=[{text}]"],
        profile,
    )
    assert changed.cluster.account == changed.cluster.environment["A"] == changed.cluster.reservation == text
    assert (changed.cluster.modules, str(changed.run.dir)) == ([text], text)
    assert changed.run_phases[1].config.data.train[0].path == text


def test_an_override_in_a_locale_of_ascii_is_utf8(write):
    config = load_config(write(LEAST), ["track.experiment=\udcc3\udca9"])  # as Python gives the bytes of é
    assert config.track.experiment == "é"


def test_text_keys_leave_numbers_null_and_aliases_alone(write):
    path = write(
        "run: {dir: &x 010, seed: *x}\ndata: {train: d, valid: null}\ntrain: {steps: 5}\n"
        "deepspeed: {raw: 0123, off: on, text: '1e3', 010: 1}\ncluster: {<<: {account: 0123}, qos: ~}\n"
    )
    config = load_config(path)
    assert (str(config.run.dir), config.run.seed) == ("010", 8)
    assert config.deepspeed == {"raw": 83, "off": True, "text": "1e3", "010": 1}
    assert (config.data.valid, config.cluster.qos, config.cluster.account) == (None, None, "0123")
    assert load_config(write(as_yaml(config))) == config


def test_a_mixture_is_a_list_of_paths_with_shares(write):
    config = load_config(write(LEAST), ["data.train=[{path: a, weight: 2}, {path: s3://b/c, weight: 1}]"])
    assert [(source.path, source.weight) for source in config.data.train] == [("a", 2), ("s3://b/c", 1)]
    plain = load_config(write(LEAST), ["data.train=[a, b]"]).data
    assert [(source.path, source.weight, source.epochs) for source in plain.train] == [(x, None, None) for x in "ab"]
    assert "give every data set a weight" in refusal(write(LEAST), "data.train=[a, b]", "data.packing=none")
    single = load_config(write(LEAST)).data
    assert [(source.path, source.weight) for source in single.train] == [("data/x", 1)]


@pytest.mark.parametrize(
    ("overrides", "muon"),
    [
        (["optim.lr=1e-7", "model.size=base", "data.valid=väl", "deepspeed.zero_optimization.stage3_x=1"], None),
        (["optim.name=muon"], {"momentum": 0.95, "newton_schulz_steps": 5}),
        (["optim.name=muon", "optim.muon.momentum=0.9"], {"momentum": 0.9, "newton_schulz_steps": 5}),
    ],
)
def test_save_and_load_round_trip(write, tmp_path, overrides, muon):
    config = load_config(write(LEAST), overrides)
    assert (config.optim.muon and config.optim.muon.model_dump()) == muon
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config
