"""Config options: every option with its default, and shipped configs that parse."""

from functools import partial
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from pretrain.config import Config
from pretrain.config_files import load_config, save_config
from pretrain.config_files.load_config import model_in
from tests.support.configs import LEAST, config_file
from tests.support.forked import ROOT

# Every public option with its default ("required" without one). A change here is a change for users: it
# belongs in the change log.
OPTIONS = {
    "run.dir": "required",
    "run.seed": 0,
    "run.resume": "auto",
    "run.trust_checkpoint": False,
    "run.allow_changes": False,
    "run.stop_after": None,
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
    "masking.selection.weights": None,
    "masking.selection.unmarked": 1.0,
    "masking.selection.per": "row",
    "masking.static_epochs": 0,
    "masking.diffusion.modes": [],
    "masking.diffusion.weight": "inverse_rate",
    "masking.diffusion.density_power": 0,
    "masking.diffusion.start": None,
    "model.arch": "bert",
    "model.config": None,
    "model.size.layers": 4,
    "model.size.hidden": 256,
    "model.size.heads": 4,
    "model.size.intermediate": None,
    "model.size.kv_heads": None,
    "model.dropout": 0.0,
    "model.max_positions": None,
    "model.local_attention": 128,
    "model.global_rope_theta": 160_000.0,
    "model.local_rope_theta": 10_000.0,
    "model.scaled_init": False,
    "model.init": None,
    "model.init_vocabulary": "same",
    "model.init_size": "same",
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
    "train.steps": 10,
    "train.tokens": None,
    "train.global_batch_size": 32,
    "train.micro_batch_size": None,
    "train.precision": "bf16",
    "train.label_smoothing": 0.0,
    "train.z_loss": 0.0,
    "train.activation_checkpointing": False,
    "train.compile": "auto",
    "train.fused_kernels": "auto",
    "train.flash_attention": "auto",
    "train.profile": None,
    "phases": [],
    "zero.stage": 1,
    "zero.offload": "none",
    "zero.offload_parameters": False,
    "zero.reduce_dtype": "fp32",
    "zero.overlap": True,
    "checkpoint.every_steps": 1000,
    "checkpoint.every_minutes": None,
    "checkpoint.asynchronous": True,
    "checkpoint.keep": 2,
    "checkpoint.keep_every": None,
    "checkpoint.at_steps": [],
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
    "guard.gradient_check_steps": 0,
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
    "cluster.interface": None,
    "deepspeed": {},
}


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key in value for k, v in flat(f"{prefix}.{key}" if prefix else key, value[key]).items()}
    return {prefix: value}


def required(section: type[BaseModel], prefix: str = "") -> set[str]:
    names = set()
    for name, field in section.model_fields.items():
        if model_in(field.annotation) is field.annotation and field.is_required():
            names |= required(field.annotation, f"{prefix}{name}.")
        elif field.is_required():
            names.add(prefix + name)
    return names


def test_options_and_defaults_are_these(write):
    found = flat("", load_config(write(LEAST)).model_dump(mode="json"))
    missing = required(Config)
    assert {name: "required" if name in missing else value for name, value in found.items()} == OPTIONS
    assert missing == {"run.dir", "data.train"}


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


CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_there_are_configs_to_check():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_config_parses(path):
    load_config(path)
