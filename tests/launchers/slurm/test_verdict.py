"""Requeue decision of a Slurm job: known cases, and rules that hold for any outcome."""

from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import hypothesis.strategies as st
import pytest
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


def kind_of(decision: Any) -> str:
    """The state of an end, or "restart" or "requeue"."""
    return decision.state if isinstance(decision, End) else type(decision).__name__.lower()


NO_REQUEUE = LIMITS.model_copy(update={"requeue": False})
ILL, TWO_ILL = {"n1": "gave no answer"}, {"n1": "gave no answer", "n3": "has 3 of 4 GPUs"}
ALL_ILL = dict.fromkeys(HOSTS, "cannot write the run folder")
SAME = replace(NEW.seen(10), restarts=1, failure=Failure(12, "rank 3: RuntimeError: x"))  # the error at the same step
WORN = replace(NEW.seen(10), requeues=2)
DECISIONS: list[tuple[str, dict[str, Any]]] = [
    ("completed", {"state": "completed", "warned": True, "ending": "limit"}),
    ("completed", {"state": "completed", "ending": "other", "problems": {"n1": "gone"}}),
    ("restart", {}),
    ("restart", {"problems": ILL}),  # with the spare node
    ("requeue", {"problems": TWO_ILL}),
    ("failed", {"problems": TWO_ILL, "limits": NO_REQUEUE}),
    ("failed", {"problems": ALL_ILL}),
    ("failed", {"retry": False}),
    ("failed", {"retry": False, "state": None, "warned": True}),
    ("failed", {"history": SAME}),
    ("restart", {"history": replace(SAME, failure=Failure(11, CRASH.reason))}),
    ("restart", {"history": replace(SAME, failure=Failure(12, "another"))}),
    ("restart", {"history": SAME, "checkpoint": 20}),  # a newer checkpoint is progress
    ("restart", {"history": SAME, "problems": ILL}),  # an unhealthy node explains the error,
    ("failed", {"history": SAME, "problems": {"n3": "ill"}}),  # but not one that was not used
    *(("stopped", {"state": "stopped", "retry": False, "ending": ending}) for ending in ("no", "limit", "other")),
    ("requeue", {"state": "stopped"}),  # by a preemption's SIGTERM
    ("requeue", {"state": "stopped", "retry": False, "warned": True}),
    ("requeue", {"state": "stopped", "retry": False, "warned": True, "ending": "limit"}),
    ("stopped", {"state": "stopped", "warned": True, "limits": NO_REQUEUE}),
    ("stopped", {"state": "stopped", "warned": True, "ending": "other"}),  # what Slurm ends is left to Slurm
    ("failed", {"warned": True, "ending": "other"}),
    ("requeue", {"ending": "limit"}),
    ("failed", {"ending": "limit", "history": WORN}),  # not for ever without a newer checkpoint
    ("requeue", {"ending": "limit", "history": WORN, "checkpoint": 20}),
]


@pytest.mark.parametrize(("kind", "seen"), DECISIONS)
def test_what_follows_an_attempt(kind: str, seen: dict[str, Any]) -> None:
    assert kind_of(after(**seen)) == kind


def test_a_decision_names_nodes_and_reasons() -> None:
    assert after(state="completed") == End("completed", CRASH.reason)
    assert after(retry=False) == End("failed", CRASH.reason)
    assert after().hosts == ("n1", "n2")
    assert after(ILL).hosts == ("n2", "n3")
    assert after(ILL).reason == "node n1: gave no answer; rank 1: RuntimeError: x"
    assert after(TWO_ILL).exclude == ("n1", "n3")
    assert "node n1: gave no answer, node n3: has 3 of 4 GPUs" in after(TWO_ILL, limits=NO_REQUEUE).reason
    assert "twice" in after(history=SAME).reason


def test_the_first_start_takes_healthy_nodes() -> None:
    assert first_start(HOSTS, {}, NEW, LIMITS) == Restart(("n1", "n2"), 0.0, "to begin with")
    assert first_start(HOSTS, {"n1": "ill"}, NEW, LIMITS).hosts == ("n2", "n3")
    both = {"n1": "ill", "n2": "ill"}
    assert first_start(HOSTS, both, NEW, LIMITS) == Requeue(("n1", "n2"), "node n1: ill, node n2: ill")
    assert kind_of(first_start(HOSTS, {}, replace(NEW, requeues=3), LIMITS)) == "failed"
    assert kind_of(first_start(HOSTS, ALL_ILL, NEW, LIMITS)) == "failed", "others are not asked for"
    alone = LIMITS.model_copy(update={"nodes": 1})
    assert first_start(["n1"], {"n1": "ill"}, NEW, alone) == Requeue(("n1",), "node n1: ill")


def test_the_pause_doubles_has_a_bound_and_differs_by_job() -> None:
    pauses = [pause(replace(NEW, restarts=n)) for n in range(1, 12)]
    for n, seconds in enumerate(pauses):
        middle = min(10 * 2**n, 300)
        assert 0.75 * middle <= seconds <= 1.25 * middle
    assert pause(replace(NEW, restarts=1)) == pauses[0]
    assert len({pause(LaunchHistory(job, restarts=1)) for job in range(20)}) == 20


SEEN = {"state": st.sampled_from(["completed", "stopped", "failed", None]), "retry": st.booleans()}
SEEN |= {"reason": st.sampled_from(["a", "b", "c 1", "c 2"]), "step": st.integers(-1, 3), "warned": st.booleans()}
SEEN |= {"checkpoint": st.integers(-1, 2), "ending": st.sampled_from(["no", "limit", "other"])}
CRASHED = {"state": st.sampled_from(["failed", None]), "retry": st.just(True), "reason": st.sampled_from(["a", "b"])}
CRASHED |= {"step": st.integers(0, 1), "checkpoint": st.integers(-1, 0), "warned": st.just(False)}
outcomes, crashes = st.builds(Outcome, **SEEN), st.builds(Outcome, **CRASHED, ending=st.just("no"))
ills = st.dictionaries(st.sampled_from(HOSTS), st.just("ill"))
COUNTS = {"nodes": st.integers(1, 3), "max_restarts": st.integers(0, 3), "max_requeues": st.integers(1, 3)}
limits = st.builds(ClusterConfig, requeue=st.booleans(), **COUNTS)


@settings(max_examples=300, deadline=None)
@given(limits, st.lists(st.tuples(outcomes, ills) | st.tuples(crashes, st.just({})), min_size=1, max_size=8))
def test_no_sequence_of_ends_goes_round_for_ever(limits, ends):
    """The newest checkpoint can rise three times here (-1 to 2); all else is bounded by the limits."""
    history, starts = NEW, 0
    for outcome, problems in islice(cycle(ends), 70):
        decision, history = next_after(outcome, HOSTS, problems, history, limits)
        assert (kind_of(decision) == "completed") == (outcome.state == "completed")
        assert history.restarts <= limits.max_restarts
        if isinstance(decision, Restart):
            assert len(decision.hosts) == limits.nodes
            assert not set(decision.hosts) & problems.keys()
        elif isinstance(decision, Requeue):
            assert limits.requeue
            history = replace(history, requeues=history.requeues + 1)
            if kind_of(first_start(HOSTS, {}, history, limits)) == "failed":
                break
        else:
            break
        starts += 1
    assert starts <= 4 * ((limits.max_restarts + 1) * (limits.max_requeues + 1))


@given(outcomes, ills, limits, st.integers(0, 3), st.integers(0, 3))
def test_only_what_may_be_tried_again_is(outcome, problems, limits, restarts, requeues):
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
    if kind_of(decision) == "stopped":
        assert outcome.state == "stopped"
