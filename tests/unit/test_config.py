"""The configuration: every key checked, every mistake one sentence, every default written down here."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from data_prep.errors import UserError
from pretrain.config import PRESETS, Config, SizeConfig, load_config, save_config
from pretrain.config.training import RampConfig
from tests.support.forked import ROOT
from tests.support.hostile_json import DIGITS, NESTED

LEAST = {"run": {"dir": "runs/x"}, "data": {"train": "data/x"}, "train": {"steps": 10}}

# Every public option with its default ("required" where there is none). A change here is a change for users: it
# belongs in the change log.
OPTIONS = {
    "run.dir": "required",
    "run.seed": 0,
    "run.resume": "auto",
    "run.trust_checkpoint": False,
    "run.allow_changes": False,
    "run.deterministic": False,
    "data.train": "required",
    "data.valid": None,
    "data.seq_len": 128,
    "data.packing": "best_fit",
    "data.window_blocks": 256,
    "data.shuffled_ngrams": 0,
    "data.damage_budget": 0,
    "data.cache_dir": None,
    "data.cache_gb": 50,
    "objective": "mlm",
    "masking.strategy": "token",
    "masking.rate": 0.15,
    "masking.replacement.mask": 0.8,
    "masking.replacement.random": 0.1,
    "masking.replacement.per": "unit",
    "masking.span.p": 0.2,
    "masking.span.max_words": 10,
    "masking.ngram": 3,
    "masking.collocations": None,
    "masking.static_epochs": 0,
    "masking.device": "cpu",
    "model.arch": "bert",
    "model.config": None,
    "model.size.layers": 4,
    "model.size.hidden": 256,
    "model.size.heads": 4,
    "model.size.intermediate": None,
    "model.dropout": 0.0,
    "model.max_positions": None,
    "model.local_attention": 128,
    "model.global_rope_theta": 160_000.0,
    "model.local_rope_theta": 10_000.0,
    "model.scaled_init": False,
    "model.init": None,
    "optim.name": "adamw",
    "optim.lr": 5e-4,
    "optim.betas": [0.9, 0.98],
    "optim.eps": 1e-6,
    "optim.weight_decay": 0.01,
    "optim.decay_embeddings": False,
    "optim.grad_clip": 1.0,
    "optim.muon": None,
    "optim.ema": None,
    "schedule.kind": "wsd",
    "schedule.warmup_steps": 0,
    "schedule.decay": "linear",
    "schedule.decay_fraction": 0.2,
    "schedule.decay_steps": None,
    "schedule.min_ratio": 0.0,
    "train.steps": "required",
    "train.global_batch_size": 32,
    "train.micro_batch_size": None,
    "train.batch_ramp": None,
    "train.precision": "bf16",
    "train.label_smoothing": 0.0,
    "train.z_loss": 0.0,
    "train.activation_checkpointing": False,
    "train.compile": False,
    "train.fused_kernels": False,
    "train.profile": None,
    "curriculum": [],
    "zero.stage": 1,
    "zero.offload": "none",
    "zero.nvme_path": None,
    "zero.offload_parameters": False,
    "checkpoint.every_steps": 1000,
    "checkpoint.every_minutes": None,
    "checkpoint.asynchronous": True,
    "checkpoint.keep": 2,
    "checkpoint.keep_every": None,
    "checkpoint.max_failures": 3,
    "checkpoint.remote": None,
    "eval.every_steps": 1000,
    "eval.rows": 1024,
    "eval.samples": 4,
    "eval.masks": "own",
    "guard.dry_run": True,
    "guard.max_skipped": 5,
    "guard.spike_threshold": 6.0,
    "guard.spike_window": 128,
    "guard.rollback": False,
    "guard.spike_steps": 10,
    "guard.skip_steps": 100,
    "guard.max_rollbacks": 3,
    "guard.hang_seconds": 600.0,
    "guard.slow_factor": 1.5,
    "guard.replica_check_steps": 1000,
    "guard.data_wait": 0.1,
    "track.uri": "sqlite:///mlflow.db",
    "track.experiment": "maskwright",
    "track.parent": None,
    "track.models": "none",
    "track.system_seconds": 30.0,
    "track.group_norms_every": 100,
    "cluster.nodes": 1,
    "cluster.gpus_per_node": 1,
    "cluster.cpu": False,
    "cluster.cpus_per_process": None,
    "cluster.spare_nodes": 0,
    "cluster.job_name": None,
    "cluster.partition": None,
    "cluster.account": None,
    "cluster.qos": None,
    "cluster.constraint": None,
    "cluster.reservation": None,
    "cluster.time": None,
    "cluster.mem": None,
    "cluster.exclusive": False,
    "cluster.output": None,
    "cluster.signal_seconds": 120,
    "cluster.requeue": True,
    "cluster.max_restarts": 3,
    "cluster.max_requeues": 5,
    "cluster.health_seconds": 60,
    "cluster.options": [],
    "cluster.modules": [],
    "cluster.setup": None,
    "cluster.environment": {},
    "cluster.container": None,
    "cluster.bind": "none",
    "cluster.interface": None,
    "cluster.template": None,
    "deepspeed": {},
}


@pytest.fixture
def write(tmp_path):
    def writer(values: Any) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
        return path

    return writer


def refusal(path: Path, *overrides: str) -> str:
    """The sentence with which a config is refused."""
    with pytest.raises(UserError) as caught:
        load_config(path, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    assert "Config" not in message, "the names of our classes mean nothing to a user"
    return message


def flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key in value for k, v in flat(f"{prefix}.{key}" if prefix else key, value[key]).items()}
    return {prefix: value}


def required(section: type[BaseModel], prefix: str = "") -> set[str]:
    names = set()
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and field.is_required():
            names |= required(field.annotation, f"{prefix}{name}.")
        elif field.is_required():
            names.add(prefix + name)
    return names


def test_options_and_defaults_are_these(write):
    found = flat("", load_config(write(LEAST)).model_dump(mode="json"))
    missing = required(Config)
    assert {name: "required" if name in missing else value for name, value in found.items()} == OPTIONS
    assert missing == {"run.dir", "data.train", "train.steps"}


CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_configs_to_check():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_config_parses(path):
    load_config(path)


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("trian.steps=5", "trian is not a key; did you mean train?"),
        ("cluster.containr.image=x", "cluster.containr is not a key; did you mean cluster.container?"),
        ("train.step=5", "train.step is not a key; did you mean train.steps?"),
        ("optim.learning_rate=1", "optim.learning_rate is not a key; the keys there are name, lr, betas, eps,"),
        ("masking.replacement.masks=0.5", "did you mean masking.replacement.mask?"),
        ("model.size={layers: 2, hidden: 32, head: 2, heads: 2}", "did you mean model.size.heads?"),
        ("checkpoint.evry_steps=5", "did you mean checkpoint.every_steps?"),
        ("optim={name: muon, muon: {momentun: 0.9}}", "did you mean optim.muon.momentum?"),
    ],
)
def test_unknown_key_names_the_nearest(write, override, wanted):
    message = refusal(write(LEAST), override)
    assert "config.yaml: " in message
    assert wanted in message


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("train.steps=ten", "train.steps is 'ten', but it must be a valid integer"),
        ("train.steps=1.5", "train.steps is 1.5, but it must be a valid integer"),
        ("train.steps=0", "train.steps is 0, but it must be greater than or equal to 1"),
        ("train.steps=true", "train.steps is True, but"),
        ("train.steps.more=3", "train.steps is {'more': 3}, but"),
        ("train.precision=fp8", "train.precision is 'fp8', but it must be 'bf16', 'fp16' or 'fp32'"),
        ("optim.lr=fast", "optim.lr is 'fast', but it must be a valid number"),
        ("optim.lr=.nan", "optim.lr is nan"),
        ("optim.lr=.inf", "optim.lr is inf"),
        ("optim.betas=0.9", "optim.betas is 0.9"),
        ("optim.name=adam", "optim.name is 'adam', but it must be 'adamw', 'lamb', 'stable_adamw' or 'muon'"),
        ("optim.ema=1", "optim.ema is 1, but it must be less than 1"),
        ("optim.ema=true", "optim.ema is True, but it must be a number"),
        ("optim={name: muon, muon: {momentum: 1}}", "optim.muon.momentum is 1, but it must be less than 1"),
        ("optim.betas=[0.9]", "optim.betas.1 is missing"),
        ("optim.betas=[0.9, 1.5]", "optim.betas.1 is 1.5, but it must be less than 1"),
        ("zero.stage=4", "zero.stage is 4, but it must be 0, 1, 2 or 3"),
        ("masking.rate=1", "masking.rate is 1, but it must be less than 1"),
        ("run.allow_changes=perhaps", "run.allow_changes is 'perhaps'"),
        ("run.seed=-1", "run.seed is -1"),
        ("data.seq_len=4", "data.seq_len is 4"),
        ("model.size=huge", "size 'huge' is no preset; write one of tiny, mini, small, base, large, 1b"),
        ("model.size.layers=2", "model.size.hidden is missing"),
        ("masking=", "masking is None, but it must be a section of keys"),
        ("optim=5", "optim is 5, but it must be a section of keys"),
        ("deepspeed=[1]", "deepspeed is [1], but it must be a"),
    ],
)
def test_wrong_type_or_value_is_named(write, override, wanted):
    assert wanted in refusal(write(LEAST), override)


@pytest.mark.parametrize("name", ["run.dir", "data.train", "train.steps"])
def test_missing_required_key_is_named(write, name):
    section, key = name.split(".")
    values = {**LEAST, section: {k: v for k, v in LEAST[section].items() if k != key}}
    assert f"{name} is missing; add it to the config" in refusal(write(values))


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["train.micro_batch_size=5"], "train.global_batch_size (32) must be a multiple of train.micro_batch_size (5)"),
        (["zero.stage=0"], "zero.stage 0 is for train.precision fp32; write zero.stage 1 for bf16"),
        (["zero.stage=0", "train.precision=fp16"], "write zero.stage 1 for fp16"),
        (["zero={stage: 0, offload: cpu}", "train.precision=fp32"], "zero: offload needs the optimizer state of"),
        (["zero={stage: 2, offload: cpu, offload_parameters: true}"], "offload_parameters is for stage 3 with offload"),
        (["zero={stage: 3, offload_parameters: true}"], "offload_parameters is for stage 3 with offload cpu or nvme"),
        (["zero={stage: 2, offload: nvme, nvme_path: /x}"], "zero: offload nvme is for stage 3"),
        (["zero={stage: 3, offload: nvme}"], "zero: offload nvme and nvme_path, a folder on a disk of each host, are"),
        (["zero={stage: 3, offload: cpu, nvme_path: /x}"], "zero: offload nvme and nvme_path"),
        (["schedule={kind: cosine, decay: 1-sqrt}"], "schedule: decay is for kind wsd, not cosine; remove it"),
        (["schedule={kind: cosine, decay_fraction: 0.5}"], "schedule: decay_fraction is for kind wsd, not cosine"),
        (["schedule={kind: linear, decay_steps: 5}"], "schedule: decay_steps is for kind wsd, not linear; remove it"),
        (["schedule={kind: constant, min_ratio: 0.1}"], "schedule: min_ratio is for rates that fall"),
        (["model.max_positions=64"], "model.max_positions (64) must be at least the longest data.seq_len (128)"),
        (["masking.replacement={mask: 0.8, random: 0.3}"], "mask + random is 1.1; the two shares may add up to 1"),
        (["masking.strategy=collocation"], "masking: strategy collocation needs masking.collocations, a list that"),
        (["masking.collocations=c"], "masking: collocations is a list for strategy collocation; set masking.strategy"),
        (["model.size={layers: 2, hidden: 33, heads: 2}"], "hidden (33) must be a multiple of heads (2)"),
        (["masking.ngram=2"], "masking: ngram is for strategy ngram, which is not chosen; set masking.strategy, or"),
        (["masking.span.p=0.5", "masking.strategy=whole_word"], "masking: span is for strategy span, which is not"),
        (["objective=clm", "eval.masks=common"], "eval.masks common is for objective mlm, not clm; set it to own"),
        (
            ["objective=clm", "masking.rate=0.3"],
            "masking.rate says which tokens to mask and how, and objective: clm masks",
        ),
        (["objective=clm", "masking.strategy=span"], "objective: clm masks none; remove it"),
        (["objective=clm", "masking.replacement.mask=1", "masking.replacement.random=0"], "clm masks none; remove it"),
        (["objective=clm", "masking.device=gpu"], "masking.device gpu is for objective mlm, not clm"),
        (["optim.muon.momentum=0.9"], "optim: muon has settings of name muon, which adamw does not read; remove them"),
        (["model.arch=auto"], "arch auto and config go together"),
        (["model.config={model_type: electra}"], "arch auto and config go together"),
        (["model={arch: auto, config: x, init: y}"], "init is for the native encoder"),
        (["model={arch: auto, config: x, size: base}"], "with arch auto, size is what config says; leave model.size"),
        (["model={arch: auto, config: x, max_positions: 512}"], "with arch auto, max_positions is what config says"),
        (["model={arch: auto, config: x}", "train.fused_kernels=true"], "fused_kernels is for the native encoder"),
        (["model={arch: auto, config: x}", "train.compile=true"], "compile is for the native encoder"),
        (["zero.stage=3", "train.compile=true"], "compile is for zero.stage 0 to 2"),
        (["train.fused_kernels=true", "train.compile=true"], "set it or train.fused_kernels to false"),
        (["model={arch: auto, config: x}", "train.activation_checkpointing=true"], "is for the native encoder"),
        (["model.global_rope_theta=10000"], "model: global_rope_theta is for arch modernbert, not bert; remove it"),
        (["model={arch: roberta, local_attention: 64}"], "local_attention is for arch modernbert, not roberta"),
        (["model={arch: modernbert, local_attention: 63}"], "local_attention is 63, but it must be a multiple of 2"),
        (["model={arch: modernbert, scaled_init: true}"], "scaled_init is for arch bert and roberta, not modernbert"),
        (["model={scaled_init: true, init: y}"], "scaled_init is for random weights, and init gives others"),
        (["objective=clm", "model.arch=modernbert"], "objective clm needs model.arch bert or roberta, not modernbert"),
        (["guard={rollback: true, spike_threshold: 0}"], "rollback needs spikes to be looked for; set guard.spike_thr"),
        (["guard.rollback=true", "checkpoint.keep=1"], "guard.rollback needs a checkpoint from before the spike; set"),
        (
            ["train.profile.steps=[0, 2]"],
            "train.profile: steps [0, 2] must be a first step",
        ),
        (
            ["train.profile.steps=[6, 5]"],
            "train.profile: steps [6, 5] must be a first step",
        ),
        (["train.profile.steps=[1, 101]", "train.steps=200"], "steps [1, 101] are 101, whose traces would fill memory"),
        (
            ["train.profile.steps=[5, 11]"],
            "train: profile.steps [5, 11] end after the last step (10)",
        ),
        (["train.profile={}"], "train.profile.steps is missing"),
        (["track.system_seconds=0.01"], "track.system_seconds: 0.01 s is too short to measure a rate"),
        (["track.group_norms_every=-1"], "track.group_norms_every is -1, but it must be greater than or equal to 0"),
        (["guard.slow_factor=0.9"], "slow_factor 0.9 would make every rank slow; write more than 1, or 0 for none"),
        (["checkpoint.keep_every=1500"], "checkpoint.keep_every (1500) must be a multiple of checkpoint.every_steps"),
        (["checkpoint.remote=bucket/run"], "'bucket/run' is not a URL like s3://bucket/run"),
        (["checkpoint.remote=s3://me:secret@host/run"], "passwords and tokens do not belong in a config"),
        (["objective=clm", "track.models=last"], "track.models is for models that fill masks"),
        (["track.uri=http://me:secret@host"], "passwords and tokens do not belong in a config"),
    ],
)
def test_cross_checks(write, overrides, wanted):
    message = refusal(write(LEAST), *overrides)
    assert wanted in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "override", ["train.steps", "=5", "train..steps=5", ".steps=5", "train.steps=[1", "train.steps=2024-02-31"]
)
def test_malformed_override_is_quoted(write, override):
    assert repr(override) in refusal(write(LEAST), override)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("run: {dir: x\n", "line 2 is not valid YAML"),
        ("- a\n- b\n", "a config is a mapping of sections"),
        ("", "a config is a mapping of sections"),
        ("run: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("train: {steps: 2024-02-31}\n", "cannot be read"),
        (f"train: {{steps: {DIGITS}}}\n", "cannot be read"),
        (f"train: {NESTED}\n", "cannot be read"),
    ],
)
def test_unusable_file(write, content, wanted):
    assert wanted in refusal(write(content))


def test_missing_file_and_folder(tmp_path):
    assert "no such config file" in refusal(tmp_path / "none.yaml")
    assert "cannot be read" in refusal(tmp_path)


def test_overrides_have_yaml_types(write):
    overrides = [
        "optim.lr=5e-4",
        "optim.betas=[0.8, 0.9]",
        "data.valid=data/v",
        "run.allow_changes=true",
        "model.size=tiny",
        "model.max_positions=256",
        "masking.replacement.mask=0.5",
        "deepspeed.zero_optimization.overlap_comm=false",
        "train.steps=20",
        "train.steps=30",
    ]
    config = load_config(write(LEAST), overrides)
    assert config.optim.lr == 5e-4
    assert config.optim.betas == (0.8, 0.9)
    assert config.data.valid == "data/v"
    assert config.run.allow_changes is True
    assert config.model.size == SizeConfig(**PRESETS["bert"]["tiny"])
    assert (config.masking.replacement.mask, config.masking.replacement.random) == (0.5, 0.1)
    assert config.deepspeed == {"zero_optimization": {"overlap_comm": False}}
    assert config.train.steps == 30, "the last override counts"
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


def test_save_and_load_round_trip(write, tmp_path):
    overrides = ["optim.lr=1e-7", "model.size=base", "data.valid=väl", "deepspeed.zero_optimization.stage3_x=1"]
    config = load_config(write(LEAST), overrides)
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config
    assert set(flat("", yaml.safe_load((tmp_path / "saved.yaml").read_text()))) >= set(OPTIONS) - {"deepspeed"}


@pytest.mark.parametrize("muon", ["", "optim.muon.momentum=0.9"])
def test_muon_has_settings_of_its_own(write, tmp_path, muon):
    config = load_config(write(LEAST), ["optim.name=muon", *filter(None, [muon])])
    assert config.optim.muon.model_dump() == {"momentum": 0.9 if muon else 0.95, "newton_schulz_steps": 5}
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


def test_a_config_cannot_be_changed(write):
    config = load_config(write(LEAST))
    with pytest.raises(ValueError):
        config.train.steps = 5


@pytest.mark.parametrize("module", ["pretrain.config", "launchers.cli", "launchers.local", "data_prep.reader"])
def test_command_line_starts_without_heavy_packages(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'deepspeed', 'transformers', 'mlflow', 'datasets', 'fsspec') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_stages_fill_in_what_they_do_not_set(write):
    stages = "[{after_step: 5, seq_len: 512}, {after_step: 8, global_batch_size: 64, micro_batch_size: 8}]"
    config = load_config(write(LEAST), [f"curriculum={stages}", "train.micro_batch_size=16"])
    found = [(s.after_step, s.seq_len, s.global_batch_size, s.micro_batch_size) for s in config.stages]
    assert found == [(0, 128, 32, 16), (5, 512, 32, 16), (8, 512, 64, 8)]
    assert config.longest_row == 512
    assert load_config(write(LEAST)).stages == config.stages[:1] or load_config(write(LEAST)).longest_row == 128


def megatron_sizes(ramp: RampConfig, last: int, steps: int) -> list[int]:
    """Rows of the batch of each step, as Megatron-LM finds them, in its own words."""
    increments = (last - ramp.start) // ramp.increment
    found, consumed = [], 0
    for _ in range(steps):
        grown = consumed * increments // ramp.rows  # consumed_samples / rampup_samples_per_increment, without rounding
        found.append(last if consumed > ramp.rows else min(last, ramp.start + grown * ramp.increment))
        consumed += found[-1]
    return found


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 50), st.integers(1, 40), st.integers(1, 12), st.integers(1, 3000))
def test_a_ramp_has_the_batches_of_megatron(start, increment, increments, rows):
    last = start + increment * increments
    ramp = RampConfig(start=start, increment=increment, rows=rows)
    sizes = ramp.sizes(last)
    steps = sizes[-1][0] + 3
    found = [max(pair for pair in sizes if pair[0] <= step)[1] for step in range(steps)]
    assert found == megatron_sizes(ramp, last, steps)
    assert [step for step, _ in sizes] == sorted({step for step, _ in sizes})


def test_a_ramp_becomes_stages_before_the_curriculum_s(write):
    ramp = "train.batch_ramp={start: 16, increment: 8, rows: 96}"
    later = "curriculum=[{after_step: 6, seq_len: 256, micro_batch_size: 4}]"
    config = load_config(write(LEAST), [ramp, later, "train.micro_batch_size=8"])
    found = [(s.after_step, s.seq_len, s.global_batch_size, s.micro_batch_size) for s in config.stages]
    assert found == [(0, 128, 16, 8), (3, 128, 24, 8), (5, 128, 32, 8), (6, 256, 32, 4)]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (
            ["train.batch_ramp={start: 16, increment: 9, rows: 96}"],
            "must go from start (16) to global_batch_size (32) in",
        ),
        (["train.batch_ramp={start: 32, increment: 8, rows: 96}"], "train: batch_ramp must go from start (32)"),
        (
            ["train.batch_ramp={start: 16, increment: 8, rows: 96}", "train.micro_batch_size=16"],
            "a batch of train.batch_ramp (24) must be a multiple of train.micro_batch_size (16)",
        ),
        (
            ["train.batch_ramp={start: 16, increment: 8, rows: 96}", "curriculum=[{after_step: 5}]"],
            "curriculum.0.after_step (5) must be larger than the 5 steps in which train.batch_ramp ends",
        ),
    ],
)
def test_ramps_that_cannot_be(write, overrides, wanted):
    assert wanted in refusal(write(LEAST), *overrides)


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        ("[{after_step: 5}, {after_step: 5}]", "curriculum.1.after_step (5) must be larger than in the stage before"),
        (
            "[{after_step: 5, micro_batch_size: 5}]",
            "curriculum.0.global_batch_size (32) must be a multiple of curriculum.0.micro_batch_size (5)",
        ),
        ("[{after_step: 0}]", "curriculum.0.after_step is 0, but it must be greater than or equal to 1"),
        ("[{after_step: 1, seqlen: 64}]", "curriculum.0.seqlen is not a key; did you mean curriculum.0.seq_len?"),
    ],
)
def test_stages_that_cannot_be(write, stages, wanted):
    assert wanted in refusal(write(LEAST), f"curriculum={stages}")


def test_an_inherited_micro_batch_is_called_that(write):
    message = refusal(write(LEAST), "train.micro_batch_size=8", "curriculum=[{after_step: 2, global_batch_size: 4}]")
    assert (
        "curriculum.0.global_batch_size (4) must be a multiple of the micro_batch_size (8 of the stage before)"
        in message
    )


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        ("{schedule: linear, start: 0.3}", "masking.rate.end is missing"),
        (
            "{schedule: line, start: 0.3, end: 0.1}",
            "masking.rate.schedule is 'line', but it must be 'linear' or 'cosine'",
        ),
        ("{schedule: linear, start: 1.3, end: 0.1}", "masking.rate.start is 1.3, but it must be less than 1"),
        ("{schedule: linear, start: 0.3, end: 0.1, ends: 1}", "masking.rate.ends is not a key; did you mean"),
        ("high", "masking.rate is 'high', but it must be a valid number"),
    ],
)
def test_mask_rates_that_cannot_be(write, rate, wanted):
    assert wanted in refusal(write(LEAST), f"masking.rate={rate}")


def test_a_rate_that_selects_nothing_of_a_row(write):
    """k would be 0 in every row: no error, and no learning."""
    short = "data.seq_len=8"
    wanted = "masking.rate 0.08 is less than half a token of a row of 8 slots, so nothing would be predicted; raise it"
    assert f"{wanted} to 0.084 at least" in refusal(write(LEAST), short, "masking.rate=0.08")
    load_config(write(LEAST), [short, "masking.rate=0.084"])
    falling = "masking.rate={schedule: linear, start: 0.3, end: 0.08}"
    assert wanted in refusal(write(LEAST), short, falling)
    assert wanted in refusal(write(LEAST), "data.seq_len=64", falling, "curriculum=[{after_step: 2, seq_len: 8}]")
    load_config(write(LEAST), [short, "masking.rate=0.08", "objective=repair"])


def test_a_mixture_is_a_list_of_paths_with_shares(write):
    config = load_config(write(LEAST), ["data.train=[{path: a, weight: 2}, {path: s3://b/c, weight: 1}]"])
    assert [(source.path, source.weight) for source in config.data.train] == [("a", 2), ("s3://b/c", 1)]
    plain = load_config(write(LEAST), ["data.train=[a, b]"]).data
    assert [(source.path, source.weight, source.epochs) for source in plain.train] == [
        ("a", None, None),
        ("b", None, None),
    ]
    assert "give every source a weight" in refusal(write(LEAST), "data.train=[a, b]", "data.packing=none")
    single = load_config(write(LEAST)).data
    assert [(source.path, source.weight) for source in single.train] == [("data/x", 1)]


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        ("[]", "data.train is [], but it must be a path, or a list of paths or of {path, weight}"),
        ("5", "data.train is 5, but it must be a path, or a list of paths or of {path, weight}"),
        ("[{path: a, weight: 1, epochs: 1}]", "give 'a' either weight or epochs"),
        ("[{path: a, weight: 1}, {path: b, epochs: 1}]", "give every source a weight, or none"),
        ("[{path: a, weight: 1}, b]", "give every source a weight, or none"),
        ("[{path: a, weight: 0}]", "greater than 0"),
        ("[{path: a, weight: true}]", "data.train.0.weight is True, but it must be a number"),
        ("[{path: a, wieght: 1}]", "data.train.0.wieght is not a key; did you mean data.train.0.weight?"),
    ],
)
def test_mixtures_that_cannot_be(write, sources, wanted):
    assert wanted in refusal(write(LEAST), f"data.train={sources}")


def test_times_of_day_are_no_numbers(write):
    path = write("{run: {dir: 16}, data: {train: d}, train: {steps: 1_000}, cluster: {time: 24:00:00, account: 017}}")
    with pytest.raises(UserError, match=r"run\.dir"):
        load_config(path)
    config = load_config(path, ["run.dir=x", "run.seed=0x10"])
    assert (config.cluster.time, config.train.steps, config.run.seed) == ("24:00:00", 1000, 16)
    assert load_config(path, ["run.dir=x", "cluster.time=90"]).cluster.time == "90"
