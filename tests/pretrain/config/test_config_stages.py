"""Phases of a config: what they inherit and refuse, and the steps that lengths in tokens become."""

import pytest

from pretrain.config.phases import StepSpan
from pretrain.config_files import load_config, save_config
from pretrain.masking import mask_rate
from pretrain.optim import learning_rate
from tests.support.configs import LEAST, refusal

RECIPE = """[
  {name: stable, steps: 6, masking: {strategy: span, rate: {schedule: linear, start: 0.3, end: 0.2}}},
  {name: long, steps: 3, data: {seq_len: 256}, train: {global_batch_size: 8, micro_batch_size: 2}},
  {name: decay, steps: 4, objective: clm, schedule: {kind: linear}, optim: {lr: 1e-5}},
  {name: end, steps: 2, objective: mlm, masking: {strategy: token}}]"""
WITHOUT_STEPS = LEAST | {"train": {}}


def test_a_phase_inherits_what_it_does_not_set(write):
    config = load_config(write(WITHOUT_STEPS), [f"phases={RECIPE}", "train.micro_batch_size=16"])
    assert config.train.steps == 15
    assert (config.masking.strategy, config.run_phases[0].config.masking) == ("span", config.masking)
    _, long, decay, end = (phase.config for phase in config.run_phases)
    found = [(s.after_step, s.seq_len, s.global_batch_size, s.micro_batch_size) for s in config.stages]
    assert found == [(0, 128, 32, 16), (6, 256, 8, 2), (9, 256, 8, 2), (13, 256, 8, 2)]
    assert config.longest_row == 256
    assert (long.data.seq_len, long.train.global_batch_size, long.masking.strategy) == (256, 8, "span")
    assert (decay.data.seq_len, decay.objective, decay.schedule.kind, decay.optim.lr) == (256, "clm", "linear", 1e-5)
    assert (end.masking.strategy, end.masking.rate.start, end.schedule.kind) == ("token", 0.3, "linear")
    assert [kind.name for kind in config.objective_kinds] == ["mlm", "clm"]
    assert [mask_rate(config, step) for step in (0, 8, 9, 14)] == pytest.approx([0.3, 0.3 - 0.8 / 14, 1.0, 0.2])
    spans = {"schedule": StepSpan(9, 6), "objective": StepSpan(13, 2), "masking.rate": StepSpan(0, 15)}
    assert config.run_phases[3].spans.items() >= spans.items()
    assert [learning_rate(config, step) for step in (9, 14)] == pytest.approx([1e-5, 1e-5 / 6])


def test_a_saved_recipe_is_read_as_the_same_config(write, tmp_path):
    config = load_config(write(WITHOUT_STEPS), [f"phases={RECIPE}"])
    save_config(config, tmp_path / "saved.yaml")
    again = load_config(tmp_path / "saved.yaml")
    assert (again, again.run_phases) == (config, config.run_phases)
    other = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": 4})})
    assert [phase.config.train.micro_batch_size for phase in other.run_phases] == [4, 2, 2, 2]


def test_a_key_of_a_phase_is_changed_by_its_name_or_number(write):
    for key in ("phases.long.data.seq_len=64", "phases.1.data.seq_len=64"):
        config = load_config(write(WITHOUT_STEPS), [f"phases={RECIPE}", key])
        assert [stage.seq_len for stage in config.stages] == [128, 64, 64, 64]


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("phases.long.masking.rate=2", "phases.long.masking.rate must be less than 1, not 2."),
        ("phases.long.masking.strategy=spam", "phases.long.masking.strategy must be"),
        ("phases.long.masking.ratee=0.2", "Unknown key phases.long.masking.ratee. Did you mean"),
        (
            "phases.long.data.packing=none",
            "a phase cannot change data.packing; it may change data.train, temperature, seq_len",
        ),
        ("phases.decay.masking.rate=0.3", "phases.decay: masking.rate is not read by objective clm; remove it"),
        ("phases.long.train.micro_batch_size=3", "phases.long: train.global_batch_size (8) must be a multiple of"),
        ("phases.long.train.micro_batch_size=auto", "phases.1: train.micro_batch_size auto is for the whole run"),
        ("phases.long.data.restart=maybe", "phases.1: data.restart must be true or false, not 'maybe'"),
        ("phases.long.steps=0", "phases.1.steps must be 1 or more, not 0."),
        ("phases.long.name=end", "phases has two phases with the name 'end'; rename one"),
        ("phases.middle.steps=3", "There is no phase 'middle'; the phases are stable, long, decay, end."),
        ("train.steps=4", "train.steps is 4, and the steps of phases add up to 15; remove train.steps"),
        ("train.tokens=10", "phases have their own lengths; remove train.tokens"),
        ("phases=[{name: a}]", "phases.a.steps is missing; add it"),
        ("phases=[{name: a, tokens: 9, data: {seq_len: x}}]", "phases.a.data.seq_len must be a whole number"),
        ("phases.long.maskin={}", "Unknown key phases.1.maskin. Did you mean phases.1.masking?"),
        ("phases.end.model.global_rope_theta=1e6", "phases.end.model: global_rope_theta is for arch modernbert"),
    ],
)
def test_phases_that_cannot_be(write, override, wanted):
    assert wanted in refusal(write(WITHOUT_STEPS), f"phases={RECIPE}", override)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (4096, 1), (4097, 2), (409_600, 100)])
def test_tokens_are_slots_of_rows(write, tokens, steps):
    assert load_config(write(LEAST | {"train": {"tokens": tokens}})).train.steps == steps


def test_phases_have_lengths_of_their_own(write, tmp_path):
    phases = [
        {"name": "a", "tokens": 128 * 32 * 5},
        {"name": "b", "tokens": 64 * 2 * 3 + 1, "data": {"seq_len": 64}, "train": {"global_batch_size": 2}},
        {"name": "c", "steps": 7},
    ]
    config = load_config(write(WITHOUT_STEPS | {"phases": phases}))
    assert [phase.steps for phase in config.phases] == [5, 4, 7]
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config
