"""Identity of a run: settings that may change at a resume, and settings that may not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config_files import flat
from pretrain.data import Sources
from tests.support.configs import least_config
from tests.support.datasets import tokenizer_info


def data_set(fingerprint="f" * 64, tokenizer_sha256="t" * 64, weights=(1.0,), index_fingerprint=None):
    """As much of a data set as its identity takes."""
    tokenizer = replace(tokenizer_info(100), sha256=tokenizer_sha256)
    shares = Sources((), (), (weights,), ()).shares
    first = SimpleNamespace(fingerprint=fingerprint, index_fingerprint=index_fingerprint, shares=shares, mixed=dict)
    return SimpleNamespace(tokenizer=tokenizer, of_phase=lambda phase: first)


def identity(data=None, steps_done=100, **sections):
    return Identity.of(least_config(**sections), data or data_set(), steps_done)


def changed(before, now):
    return list(before.changes(now).values())


def test_settings_that_came_after_a_run_was_begun_are_what_they_are_by_default():
    """As in a checkpoint of a version that had no `scaled_init`; another value of it is reported."""
    recorded, kept = identity(steps_done=5).settings, least_config().model_dump(mode="json")
    del recorded["model.scaled_init"], kept["model"]["scaled_init"]
    saved = Checkpoint(Path("step-00000005"), 5, {"identity": recorded, "config": kept}, {})
    assert Identity.stored(saved) == identity(steps_done=5)
    now = identity(steps_done=5, model={"scaled_init": True})
    assert changed(Identity.stored(saved), now) == ["model.scaled_init was False and is True"]


@pytest.mark.parametrize(
    ("before", "change", "said"),
    [
        ({"run": {"dir": "x"}}, {"seed": 8}, "run.seed was 0 and is 8"),
        ({"train": {"steps": 10}}, {"precision": "fp32"}, "train.precision was bf16 and is fp32"),
        ({"optim": {}}, {"betas": [0.8, 0.9]}, "optim.betas was [0.9, 0.98] and is [0.8, 0.9]"),
        ({"optim": {"name": "muon"}}, {"muon": {"momentum": 0.9}}, "optim.muon.momentum was 0.95 and is 0.9"),
        ({"masking": {"strategy": "span"}}, {"span": {"p": 0.5}}, "masking.span.p was 0.2 and is 0.5"),
        ({"model": {}}, {"size": {"layers": 4, "hidden": 256, "heads": 8}}, "model.size.heads was 4 and is 8"),
        ({"model": {"init": "bert"}}, {"init_size": "tile"}, "model.init_size was same and is tile"),
        ({"schedule": {}}, {"min_ratio": 0.1}, "schedule.min_ratio was 0.0 and is 0.1"),
        ({"deepspeed": {}}, {"x": 1}, "deepspeed was {} and is {'x': 1}"),
    ],
)
def test_a_deciding_setting_is_named(before, change, said):
    ((section, values),) = before.items()
    assert changed(identity(**before), identity(**{section: values | change})) == [said]


def test_only_begun_stages_are_fixed():
    def at(steps_done, *lengths, **train):
        phases = [{"name": f"phase {n}", "steps": 50, "data": {"seq_len": length}} for n, length in enumerate(lengths)]
        phases[1]["train"] = train
        steps = {"steps": 50 * len(phases)}
        return identity(steps_done=steps_done, train=steps, phases=phases, model={"max_positions": 512})

    before = at(100, 128, 256)
    assert changed(before, at(100, 128, 256, 512)) == []
    later = changed(before, at(101, 128, 256, 512))
    assert [text.split(" was")[0] for text in later] == ["batches", "phases.phase 2 (first step)"]
    assert changed(before, at(100, 128, 256, micro_batch_size=8)) == []


def test_the_order_of_a_mix_is_named():
    """Rows draw a strategy by its place in the mix, so other masks follow from another order."""
    mix = {"token": 1, "span": 3}
    before, now = (identity(masking={"strategy": strategy}) for strategy in (mix, {"span": 3, "token": 1}))
    assert changed(before, now) == ["masking.strategy (order) was ['token', 'span'] and is ['span', 'token']"]
    for other in (now, identity(objective="clm"), identity(run={"seed": 8})):
        assert before.of_batches() != other.of_batches()
    assert before.of_batches() == identity(masking={"strategy": mix}, optim={"lr": 1.0}).of_batches()


def test_the_deciding_settings():
    """Whole sections but for what other entries cover; of the rest, those listed here."""
    config = least_config().model_dump(mode="json", include={"masking", "model", "optim", "schedule"})
    whole = flat(config).keys() - {"model.init", "model.config", "masking.selection.weights"}
    rest = {"batches", "deepspeed", "model.init (weights)", "objective", "plan version", "run.seed"}
    rest |= {"data.train (fingerprint)", "data.train (shares)", "data.train (tokenizer)"}
    rest |= {"indexes of data.train (fingerprint)", "data.seq_len", "data.packing", "data.window_blocks"}
    rest |= {"train.global_batch_size", "train.precision", "train.z_loss"}
    assert {*identity().settings} - whole == rest
    assert whole <= identity().settings.keys()


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


def test_a_setting_that_only_one_side_knows_is_a_difference():
    assert changed(Identity({"a": 1}), Identity({"a": 1, "b": 2})) == ["b was None and is 2"]
    assert changed(Identity({"a": 1, "b": 2}), Identity({"a": 1})) == ["b was 2 and is None"]
