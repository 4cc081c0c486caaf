"""Requeue decision of a Slurm job: known cases, and rules that hold for any outcome."""

from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from launchers.slurm.requeue_decision import (
    End,
    Failure,
    LaunchHistory,
    Outcome,
    Requeue,
    Restart,
    first_start,
    next_after,
    pause,
)
from pretrain.config import ClusterConfig

HOSTS = ("n1", "n2", "n3")
LIMITS = ClusterConfig(nodes=2, max_restarts=3, requeue=True, max_requeues=2)
NEW = LaunchHistory(7)
CRASH = Outcome("failed", "rank 1: RuntimeError: x", retry=True, step=12, checkpoint=10, hosts=("n1", "n2"))


def after(
    problems: dict[str, str] | None = None, history: LaunchHistory = NEW, limits: ClusterConfig = LIMITS, **changes: Any
) -> Any:
    return next_after(replace(CRASH, **changes), HOSTS, problems or {}, history, limits)[0]


def is_end(decision: Any, state: str) -> bool:
    return isinstance(decision, End) and decision.state == state


def test_a_complete_run_is_complete_whatever_else_is_seen() -> None:
    assert after(state="completed", warned=True, ending="limit") == End("completed", CRASH.reason)
    assert after(state="completed", ending="other", problems={"n1": "gone"}) == End("completed", CRASH.reason)


def test_a_failure_starts_again_on_healthy_nodes() -> None:
    assert after().hosts == ("n1", "n2")
    found = after({"n1": "gave no answer"})
    assert found.hosts == ("n2", "n3")
    assert found.reason == "node n1: gave no answer; rank 1: RuntimeError: x"


def test_without_a_spare_the_job_is_queued_again_without_the_node() -> None:
    ill = {"n1": "gave no answer", "n3": "has 3 of 4 GPUs"}
    assert after(ill).exclude == ("n1", "n3")
    found = after(ill, limits=LIMITS.model_copy(update={"requeue": False}))
    assert is_end(found, "failed")
    assert "node n1: gave no answer, node n3: has 3 of 4 GPUs" in found.reason


def test_what_a_restart_cannot_mend_is_not_tried_again() -> None:
    assert after(retry=False) == End("failed", CRASH.reason)
    assert after(retry=False, state=None, warned=True) == End("failed", CRASH.reason)


def test_the_same_error_at_the_same_step_ends_the_job() -> None:
    before = NEW.seen(10)
    same = replace(before, restarts=1, failure=Failure(12, "rank 3: RuntimeError: x"))
    assert "twice" in after(history=same).reason
    assert isinstance(after(history=replace(same, failure=Failure(11, CRASH.reason))), Restart)
    assert isinstance(after(history=replace(same, failure=Failure(12, "another"))), Restart)
    assert isinstance(after(history=same, checkpoint=20), Restart), "a newer checkpoint is progress"
    assert isinstance(after({"n1": "ill"}, history=same), Restart), "an unhealthy node explains the error"
    assert is_end(after({"n3": "ill"}, history=same), "failed"), "but not one that was not used"


def test_a_stop_on_request_ends_the_job_and_one_by_slurm_requeues_it() -> None:
    for ending in ("no", "limit", "other"):
        assert is_end(after(state="stopped", retry=False, ending=ending), "stopped"), ending
    assert isinstance(after(state="stopped", retry=True), Requeue), "a preemption's SIGTERM"
    assert isinstance(after(state="stopped", retry=False, warned=True), Requeue)
    assert isinstance(after(state="stopped", retry=False, warned=True, ending="limit"), Requeue)
    assert is_end(after(state="stopped", warned=True, limits=LIMITS.model_copy(update={"requeue": False})), "stopped")


def test_what_slurm_ends_is_left_to_slurm() -> None:
    assert is_end(after(state="stopped", warned=True, ending="other"), "stopped")
    assert is_end(after(warned=True, ending="other"), "failed")


def test_a_time_limit_without_a_checkpoint_requeues_and_not_for_ever() -> None:
    assert isinstance(after(ending="limit"), Requeue)
    worn = replace(NEW.seen(10), requeues=2)
    assert is_end(after(ending="limit", history=worn), "failed")
    assert isinstance(after(ending="limit", history=worn, checkpoint=20), Requeue)


def test_the_first_start_takes_healthy_nodes() -> None:
    assert first_start(HOSTS, {}, NEW, LIMITS) == Restart(("n1", "n2"), 0.0, "to begin with")
    decision = first_start(HOSTS, {"n1": "ill"}, NEW, LIMITS)
    assert isinstance(decision, Restart)
    assert decision.hosts == ("n2", "n3")
    decision = first_start(HOSTS, {"n1": "ill", "n2": "ill"}, NEW, LIMITS)
    assert decision == Requeue(("n1", "n2"), "node n1: ill, node n2: ill")
    assert is_end(first_start(HOSTS, {}, replace(NEW, requeues=3), LIMITS), "failed")


def test_where_all_of_several_nodes_are_ill_others_are_not_asked_for() -> None:
    ill = dict.fromkeys(HOSTS, "cannot write the run folder")
    assert is_end(first_start(HOSTS, ill, NEW, LIMITS), "failed")
    assert is_end(after(problems=ill), "failed")
    alone = LIMITS.model_copy(update={"nodes": 1})
    assert first_start(["n1"], {"n1": "ill"}, NEW, alone) == Requeue(("n1",), "node n1: ill")


def test_the_pause_doubles_has_a_bound_and_differs_by_job() -> None:
    pauses = [pause(replace(NEW, restarts=n)) for n in range(1, 12)]
    for n, seconds in enumerate(pauses):
        middle = min(10 * 2**n, 300)
        assert 0.75 * middle <= seconds <= 1.25 * middle
    assert pause(replace(NEW, restarts=1)) == pauses[0]
    assert len({pause(LaunchHistory(job, restarts=1)) for job in range(20)}) == 20


outcomes = st.builds(
    Outcome,
    state=st.sampled_from(["running", "completed", "stopped", "failed", None]).filter(lambda state: state != "running"),
    reason=st.sampled_from(["a", "b", "c 1", "c 2"]),
    retry=st.booleans(),
    step=st.integers(-1, 3),
    checkpoint=st.integers(-1, 2),
    warned=st.booleans(),
    ending=st.sampled_from(["no", "limit", "other"]),
)
crashes = st.builds(
    Outcome,
    state=st.sampled_from(["failed", None]),
    reason=st.sampled_from(["a", "b"]),
    retry=st.just(True),
    step=st.integers(0, 1),
    checkpoint=st.integers(-1, 0),
    warned=st.just(False),
    ending=st.just("no"),
)
ills = st.dictionaries(st.sampled_from(HOSTS), st.just("ill"))
limits = st.builds(
    ClusterConfig,
    nodes=st.integers(1, 3),
    max_restarts=st.integers(0, 3),
    requeue=st.booleans(),
    max_requeues=st.integers(1, 3),
)


@settings(max_examples=300, deadline=None)
@given(limits, st.lists(st.tuples(outcomes, ills) | st.tuples(crashes, st.just({})), min_size=1, max_size=8))
def test_no_sequence_of_ends_goes_round_for_ever(
    limits: ClusterConfig, ends: list[tuple[Outcome, dict[str, str]]]
) -> None:
    """The newest checkpoint can rise three times here (-1 to 2); all else is bounded by the limits."""
    history, starts = NEW, 0
    for outcome, problems in islice(cycle(ends), 70):
        decision, history = next_after(outcome, HOSTS, problems, history, limits)
        assert is_end(decision, "completed") == (outcome.state == "completed")
        assert history.restarts <= limits.max_restarts
        if isinstance(decision, Restart):
            assert len(decision.hosts) == limits.nodes
            assert not set(decision.hosts) & problems.keys()
        elif isinstance(decision, Requeue):
            assert limits.requeue
            history = replace(history, requeues=history.requeues + 1)
            if is_end(first_start(HOSTS, {}, history, limits), "failed"):
                break
        else:
            break
        starts += 1
    assert starts <= 4 * ((limits.max_restarts + 1) * (limits.max_requeues + 1))


@given(outcomes, ills, limits, st.integers(0, 3), st.integers(0, 3))
def test_only_what_may_be_tried_again_is(
    outcome: Outcome, problems: dict[str, str], limits: ClusterConfig, restarts: int, requeues: int
) -> None:
    history = LaunchHistory(7, checkpoint=5, restarts=restarts, requeues=requeues)
    decision, remembered = next_after(outcome, HOSTS, problems, history, limits)
    if isinstance(decision, Restart):
        assert outcome.retry
        assert outcome.ending == "no"
        assert not outcome.warned
        assert remembered.restarts == restarts + 1
    if isinstance(decision, Requeue):
        assert outcome.retry or outcome.warned
        assert outcome.ending != "other"
        assert requeues < limits.max_requeues
    if is_end(decision, "stopped"):
        assert outcome.state == "stopped"
