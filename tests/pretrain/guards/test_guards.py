"""Decisions of the guards, without processes."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from data_prep.common.reading import typed
from pretrain.config import GuardConfig
from pretrain.data import MixturePosition
from pretrain.guards import StepGuard, StepResult
from pretrain.guards.replicas import checksum, odd_ones
from pretrain.guards.slow_ranks import StepTimes, slow_ranks
from pretrain.guards.step_guard import GuardHistory, Rollback, StreamPoint, after_step, rollback_due

GUARD = GuardConfig(spike_window=32, spike_steps=3, rollback=True, max_skipped=3)


def place(step: int) -> StreamPoint:
    source = {"epoch": 0, "window": 2, "row": step, "past": [[32, 5]]}
    return StreamPoint(step, typed(MixturePosition, {"dealt": 8 * (step - 1), "sources": [source]}))


def result(step: int, loss: float | None, shape: tuple[int, int] = (8, 32)) -> StepResult:
    """The result of a step; None means a skipped one."""
    skipped, loss = loss is None, math.nan if loss is None else loss
    return StepResult(step, place(step).position, shape, loss, skipped, [0.1, 0.1], 0.0, 1.0, False)


def run_through(losses, guard=GUARD) -> list[GuardHistory]:
    """The history after each step."""
    histories = [GuardHistory()]
    for step, loss in enumerate(losses, start=1):
        histories.append(after_step(histories[-1], result(step, loss), guard))
    return histories[1:]


def spikes_of(histories: list[GuardHistory]) -> list[int]:
    """The steps at which spikes begin."""
    pairs = zip(histories, [GuardHistory(), *histories], strict=False)
    return [history.spike.step for history, before in pairs if history.spike and not before.spike]


def mlm_curve(steps: int, noise: float, seed: int) -> np.ndarray:
    """A plateau at the unigram entropy, a fall, a long tail, as MLM has them; relative noise, with a heavy tail."""
    s = np.arange(steps)
    smooth = 2.0 + 8.4 * np.exp(-s / 30) * 0.3 + 5.0 / (1 + np.exp((s - steps / 4) / (steps / 20))) + 1 / (1 + s / 200)
    return smooth * (1 + noise * np.random.default_rng(seed).standard_t(8, steps))


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.03])
def test_spikes_are_found_without_false_alarm_on_normal_curves(noise):
    runs = [run_through(mlm_curve(2000, noise, seed), GuardConfig()) for seed in range(5)]
    assert sum(map(len, map(spikes_of, runs))) <= 1, "in 10,000 steps with heavier tails than normal noise"
    assert not [history for run in runs for history in run if history.above > 1], "none causes a rollback"
    curve = mlm_curve(2000, noise, 1)
    curve[1500:1540] *= np.linspace(2.0, 1.6, 40)
    assert 1501 in spikes_of(run_through(curve, GuardConfig())), "a spike begins at its first step, once"
    assert len(spikes_of(run_through(curve[1300:1600], GuardConfig()))) <= 2


def test_a_level_that_stays_becomes_the_new_normal():
    histories = run_through([5.0] * 40 + [8.0] * 40)
    assert histories[40].spike == place(41)
    assert histories[-1].spike is None


def test_losses_of_other_shapes_and_of_another_objective_are_not_compared():
    """As in a new phase: going back would leave its first data out, again and again."""
    before = run_through([5.0] * 40)[-1]
    assert after_step(before, result(41, 8.0), GUARD).above == 1
    assert after_step(before, result(41, 8.0, (8, 64)), GUARD).above == 0
    now = after_step(before, replace(result(41, 8.0), settings="of the next phase"), GUARD)
    assert (now.above, now.losses) == (0, (8.0,))


def test_a_rollback_is_due_once_when_the_spike_has_lasted():
    histories = run_through([5.0] * 40 + [9.0] * 6)
    assert [rollback_due(h, GUARD) for h in histories[38:]] == [False] * 4 + [True] + [False] * 3
    assert histories[42].spike == place(41)
    lone = run_through([5.0] * 40 + [9.0, 5.0, 9.0, 9.0, 5.0])
    assert not any(rollback_due(h, GUARD) for h in lone)
    assert not rollback_due(histories[42], GUARD.model_copy(update={"rollback": False}))
    spent = GuardHistory(**{**histories[42].__dict__, "rollbacks": (Rollback(1, 0, 0, 9),) * 3})
    assert not rollback_due(spent, GUARD)


def test_skipped_steps_count_in_a_row_and_leave_the_losses_alone():
    histories = run_through([5.0, None, None, 5.0, None])
    assert [len(h.skipped_in_row) for h in histories] == [0, 1, 2, 0, 1]
    assert histories[-1].skipped == 3
    assert histories[-1].losses == (5.0, 5.0)
    assert run_through([None] * 9)[-1].skipped_in_row == (place(7), place(8), place(9))


def test_a_history_survives_json_and_decides_the_same():
    curve = [5.0 + 0.01 * (n % 7) for n in range(40)] + [None, 9.0, 9.0, 9.0]
    whole = run_through(curve)
    for cut in (10, 41, 42, 43):
        stored = typed(GuardHistory, json.loads(json.dumps(asdict(whole[cut - 1]))))
        assert stored == whole[cut - 1]
    rolled = GuardHistory(rollbacks=(Rollback(41, 30, 240, 400),), skipped=1)
    assert typed(GuardHistory, json.loads(json.dumps(asdict(rolled)))) == rolled
    rollback = "1 rollback, the last one from the spike at step 41 to step 30, rows 240 to 399 left out"
    assert (str(rolled), str(GuardHistory())) == (f"; 1 step skipped; {rollback}", "")


def test_what_is_read_back_after_a_rollback_was_decided_does_not_undo_it(tmp_path):
    """On a GPU losses are read back two steps late: the spike may be over by then."""
    guard = StepGuard(GUARD, tmp_path, run_through([5.0] * 40)[-1], ["a", "b"], prints=False)
    for step in (41, 42, 43):
        guard.record(result(step, 9.0))
    decided = guard.history
    guard.record(result(44, 5.0))
    guard.record(result(45, None))
    assert guard.rollback_due
    assert guard.history == decided
    assert guard.history.spike == place(41)


def test_slow_ranks():
    assert slow_ranks([[0.1, 0.1, 0.2]] * 9, 1.5) == {2: (0.2, 0.1)}
    assert slow_ranks([[0.1, 0.2]] * 9, 1.5) == {1: (0.2, 0.1)}
    assert slow_ranks([[0.1, 0.1, 0.14]] * 9, 1.5) == {}
    assert slow_ranks([[0.1, 0.1, 0.1]] * 6 + [[0.1, 0.1, 9.0]] * 3, 1.5) == {}, "a few steps are not many"
    assert slow_ranks([[0.0002, 0.0001]] * 9, 1.5) == {}, "below a millisecond all is noise"
    assert slow_ranks([[0.3]] * 9, 1.5) == {}


def test_a_slow_rank_is_named_once_until_it_has_recovered():
    pace = StepTimes(["n1", "n2"], slow_factor=1.5, data_wait=0.0)

    def steps(own, number=50):
        return [warning for _ in range(number) for warning in pace.record(own, 0.9, 1.0, False)]

    (warning,) = steps([0.1, 0.3], 150)
    assert "rank 1 (on n2) is slow" in warning
    assert steps([0.1, 0.1], 50) == []
    assert len(steps([0.3, 0.1], 50)) == 1


def test_waiting_for_data_is_told_once():
    pace = StepTimes(["n1"], slow_factor=0.0, data_wait=0.1)
    slow_start = [pace.record([0.1], 90.0, 100.0, True), *(pace.record([0.1], 0.05, 1.0, True) for _ in range(49))]
    assert not any(slow_start), "the first window takes a while"
    (warning,) = [w for _ in range(150) for w in pace.record([0.1], 0.25, 1.0, True)]
    assert warning.startswith("25% of the last 50 steps was waiting for data")


def test_a_gpu_that_waits_for_the_host_is_told_once():
    def advice(behind, waited=0.0, data_wait=0.1):
        pace = StepTimes(["n1"], slow_factor=0.0, data_wait=data_wait)
        return [said for step in range(200) for said in pace.record([0.02], waited, 0.02, behind(step))]

    (said,) = advice(lambda step: True)
    assert said.startswith("the GPU waits for the host, which takes 20 ms to start the kernels of a step")
    assert advice(lambda step: step % 10 > 0), "one step in ten follows an evaluation"
    assert not advice(lambda step: step % 8 > 0), "a GPU that is behind now and then has work"
    assert not advice(lambda step: step < 50), "the first steps compile kernels"
    (said,) = advice(lambda step: True, waited=0.01)
    assert "waiting for data" in said, "then the data are the reason"
    assert not advice(lambda step: True, waited=0.01, data_wait=0.0)


def test_odd_ones():
    assert odd_ones([(1, 2), (1, 2), (1, 2)]) == []
    assert odd_ones([(1, 2), (1, 3), (1, 2)]) == [1]
    assert odd_ones([(1, 2), (1, 3)]) == [0, 1]
    assert odd_ones([(1,), (2,), (3,), (3,), (3,)]) == [0, 1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_checksum_sees_every_bit(dtype):
    tensor = torch.randn(3, 5).to(dtype)
    bits = tensor.element_size() * 8
    integers = tensor.view(-1).view({16: torch.int16, 32: torch.int32, 64: torch.int64}[bits])
    before = checksum(tensor)
    for bit in range(bits):
        integers[7] ^= 1 << bit if bit < bits - 1 else -(1 << bit)
        assert checksum(tensor) != before
        integers[7] ^= 1 << bit if bit < bits - 1 else -(1 << bit)
    assert checksum(tensor) == before
