"""Identity of a run: settings that may change at a resume, and settings that may not."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config import Config
from pretrain.data import Sources
from tests.support.datasets import tokenizer_info

LEAST = {"run": {"dir": "runs/x"}, "data": {"train": "data/x"}, "train": {"steps": 10}}


def data_set(fingerprint="f" * 64, tokenizer_sha256="t" * 64, weights=(1.0,), index_fingerprint=None):
    """As much of a data set as its identity takes."""
    tokenizer = replace(tokenizer_info(100), sha256=tokenizer_sha256)
    first = SimpleNamespace(
        fingerprint=fingerprint, index_fingerprint=index_fingerprint, shares=Sources((), (), (weights,)).shares
    )
    return SimpleNamespace(tokenizer=tokenizer, of_phase=lambda phase: first)


def identity(data=None, steps_done=100, **overrides):
    values = json.loads(json.dumps(LEAST))
    for key, value in overrides.items():
        section, *name = key.split("__")
        if name:
            values.setdefault(section, {})[name[0]] = value
        else:
            values[section] = value
    return Identity.of(Config.model_validate(values), data or data_set(), steps_done)


def changed(before, now):
    return list(before.changes(now).values())


def test_settings_that_came_after_a_run_was_begun_are_what_they_are_by_default():
    """As in a checkpoint of a version that had no `scaled_init`; another value of it is reported."""
    config = Config.model_validate(LEAST)
    recorded = Identity.of(config, data_set(), 5).settings
    del recorded["model.scaled_init"]
    kept = config.model_dump(mode="json")
    del kept["model"]["scaled_init"]
    saved = Checkpoint(Path("step-00000005"), 5, {"identity": recorded, "config": kept}, {})
    assert Identity.stored(saved) == Identity.of(config, data_set(), 5)
    now = identity(steps_done=5, model__scaled_init=True)
    assert changed(Identity.stored(saved), now) == ["model.scaled_init was False and is True"]


DECIDING = {
    "run__seed": 8,
    "data__seq_len": 64,
    "data__packing": "concat",
    "data__window_blocks": 3,
    "data__shuffled_ngrams": 2,
    "objective": "clm",
    "masking__rate": 0.3,
    "masking__strategy": "span",
    "masking__static_epochs": 1,
    "model__max_positions": 512,
    "model__scaled_init": True,
    "optim__lr": 1e-3,
    "optim__betas": [0.8, 0.9],
    "optim__eps": 1e-8,
    "optim__weight_decay": 0.1,
    "optim__grad_clip": 0.5,
    "optim__name": "lamb",
    "optim__decay_embeddings": True,
    "optim__ema": 0.99,
    "schedule__kind": "linear",
    "schedule__warmup_steps": 3,
    "schedule__decay": "1-sqrt",
    "schedule__decay_fraction": 0.5,
    "schedule__decay_steps": 5,
    "schedule__min_ratio": 0.1,
    "train__global_batch_size": 64,
    "train__precision": "fp32",
    "train__label_smoothing": 0.1,
    "train__z_loss": 1e-4,
    "deepspeed": {"x": 1},
}
FREE = {
    "run__dir": "runs/elsewhere",
    "model__init": "the-same/moved",
    "run__resume": "required",
    "run__trust_checkpoint": True,
    "run__allow_changes": True,
    "run__deterministic": True,
    "data__train": "data/the-same-moved",
    "data__valid": "data/v",
    "data__damage_budget": 1000,
    "data__cache_dir": "/tmp/cache",
    "data__cache_gb": 3,
    "train__steps": 20,
    "train__micro_batch_size": 4,
    "train__activation_checkpointing": True,
    "train__compile": True,
    "train__fused_kernels": True,
    "train__flash_attention": 2,
    "train__profile": {"steps": [2, 3]},
    "zero__stage": 2,
    "zero__offload": "cpu",
    "zero": {"stage": 3, "offload": "cpu", "offload_parameters": True},
    "checkpoint__every_steps": 5,
    "checkpoint__every_minutes": 5,
    "checkpoint__asynchronous": False,
    "checkpoint__keep": 5,
    "checkpoint__keep_every": 5000,
    "checkpoint__max_failures": 5,
    "checkpoint__remote": "s3://bucket/run",
    "eval__every_steps": 5,
    "eval__rows": 5,
    "eval__samples": 5,
    "eval__masks": "common",
    "guard__dry_run": False,
    "guard__max_skipped": 2,
    "guard__spike_threshold": 5.0,
    "guard__spike_window": 64,
    "guard__rollback": True,
    "guard__spike_steps": 5,
    "guard__skip_steps": 10,
    "guard__max_rollbacks": 1,
    "guard__hang_seconds": 60.0,
    "guard__slow_factor": 2.0,
    "guard__replica_check_steps": 0,
    "guard__gradient_check_steps": 7,
    "guard__data_wait": 0.5,
    "track__uri": "sqlite:///x.db",
    "track__experiment": "x",
    "track__parent": "study",
    "track__models": "all",
    "track__system_seconds": 1.0,
    "track__group_norms_every": 7,
    "cluster": {"nodes": 3, "gpus_per_node": 8, "partition": "gpu", "environment": {"A": "b"}},
}


@pytest.mark.parametrize(("key", "value"), DECIDING.items())
def test_a_deciding_setting_is_named(key, value):
    name = key.replace("__", ".")
    before, now = identity(), identity(**{key: value})
    said = f"{name} was {before.settings[name]} and is {now.settings[name]}"
    assert said in changed(before, now)
    assert [other for other in changed(before, now) if "max_positions" not in other] == [said] or "max_pos" in name


def test_muon_s_settings_are_named():
    slow, fast = (identity(optim={"name": "muon", "muon": {"momentum": momentum}}) for momentum in (0.95, 0.9))
    assert changed(slow, fast) == ["optim.muon.momentum was 0.95 and is 0.9"]


def test_settings_of_a_strategy_are_named():
    short, long = (identity(masking={"strategy": "ngram", "ngram": words}) for words in (2, 4))
    assert changed(short, long) == ["masking.ngram was 2 and is 4"]


def test_the_objective_decides_batches():
    assert identity(objective="clm").of_batches() != identity().of_batches()


def test_only_begun_stages_are_fixed():
    def at(steps_done, *lengths, **train):
        phases = [{"name": f"phase {n}", "steps": 50, "data": {"seq_len": length}} for n, length in enumerate(lengths)]
        phases[1]["train"] = train
        values = {"train": {}, "phases": phases, "model__max_positions": 512}
        return identity(steps_done=steps_done, **values)

    before = at(100, 128, 256)
    assert changed(before, at(100, 128, 256, 512)) == []
    later = changed(before, at(101, 128, 256, 512))
    assert [text.split(" was")[0] for text in later] == ["batches", "phases.phase 2 (first step)"]
    assert changed(before, at(100, 128, 256, micro_batch_size=8)) == []


def test_nested_settings_are_named():
    size = {"layers": 4, "hidden": 256, "heads": 8}
    assert changed(identity(), identity(model__size=size)) == ["model.size.heads was 4 and is 8"]
    shares = {"mask": 0.7, "random": 0.1}
    assert changed(identity(), identity(masking__replacement=shares)) == ["masking.replacement.mask was 0.8 and is 0.7"]


def test_what_a_modernbert_computes_is_named():
    given = {"arch": "modernbert", "size": "tiny"}
    for name, value, now in (
        ("local_attention", 64, 64),
        ("global_rope_theta", 1e4, 1e4),
        ("local_rope_theta", 5, 5.0),
    ):
        before, after = identity(model=given), identity(model=given | {name: value})
        assert changed(before, after) == [f"model.{name} was {before.settings[f'model.{name}']} and is {now}"]


def test_how_initial_weights_are_adapted_is_named():
    """An older checkpoint recorded neither setting, and has the default of both."""
    first = {"init": "bert"}
    recorded = identity(model=first).settings
    for name, value in (("init_vocabulary", "pieces"), ("init_size", "tile")):
        assert changed(identity(model=first), identity(model=first | {name: value})) == [
            f"model.{name} was same and is {value}"
        ]
        del recorded[f"model.{name}"]
    config = Config.model_validate(LEAST | {"model": first}).model_dump(mode="json")
    del config["model"]["init_vocabulary"], config["model"]["init_size"]
    saved = Checkpoint(Path("step-00000005"), 5, {"identity": recorded, "config": config}, {})
    assert changed(Identity.stored(saved), identity(model=first)) == []


def test_the_order_of_a_mix_is_named():
    """Rows draw a strategy by its place in the mix, so other masks follow from another order."""
    before, now = (identity(masking__strategy=mix) for mix in ({"token": 1, "span": 3}, {"span": 3, "token": 1}))
    assert changed(before, now) == [
        "masking.strategy (order) was ['token', 'span'] and is ['span', 'token']",
    ]
    assert before.of_batches() != now.of_batches()


@pytest.mark.parametrize(("key", "value"), FREE.items())
def test_a_free_setting_changes_nothing(key, value):
    assert changed(identity(), identity(**{key: value})) == []


def test_initial_weights_count_by_content():
    config = Config.model_validate(LEAST)
    before, now = (Identity.of(config, data_set(), 100, digest) for digest in ("a" * 64, "b" * 64))
    assert list(before.changes(now)) == ["model.init (weights)"]
    assert list(identity().changes(now)) == ["model.init (weights)"]


def test_indexes_count_where_both_sides_know_them():
    """A data set of an earlier version has no index fingerprint. For another data set, only its change is reported."""
    unknown, one, other = (identity(data_set(index_fingerprint=value)) for value in (None, "i", "j"))
    assert list(one.changes(other)) == ["indexes of data.train (fingerprint)"]
    assert not unknown.changes(one) | one.changes(unknown) | one.changes(one)
    before_there_were_any = Identity({k: v for k, v in one.settings.items() if not k.startswith("indexes")})
    assert not before_there_were_any.changes(one)
    assert list(one.changes(identity(data_set("g", index_fingerprint="j")))) == ["data.train (fingerprint)"]
    assert one.of_batches() == other.of_batches()


def test_the_data_count_by_content():
    assert list(identity().changes(identity(data_set(fingerprint="g")))) == ["data.train (fingerprint)"]
    assert list(identity().changes(identity(data_set(tokenizer_sha256="u")))) == ["data.train (tokenizer)"]
    shares = identity(data_set("f g", weights=(3.0, 1.0)))
    assert list(identity(data_set("f g", weights=(6.0, 2.0))).changes(shares)) == []
    assert list(identity(data_set("f g", weights=(1.0, 1.0))).changes(shares)) == ["data.train (shares)"]


def test_identity_survives_json():
    assert json.loads(json.dumps(identity().settings)) == identity().settings


def test_a_setting_that_only_one_side_knows_is_a_difference():
    assert changed(Identity({"a": 1}), Identity({"a": 1, "b": 2})) == ["b was None and is 2"]
    assert changed(Identity({"a": 1, "b": 2}), Identity({"a": 1})) == ["b was 2 and is None"]
