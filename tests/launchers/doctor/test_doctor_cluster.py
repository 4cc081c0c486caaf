"""`maskwright doctor --cluster`: findings from node reports and from measurements."""

import itertools

import pytest

from launchers.doctor.cluster_checks import judge_figures, judge_rates
from launchers.doctor.network_test import rounds
from launchers.doctor.node_report import judge_likeness, merge_findings, print_value, values_by_task
from launchers.local import Finding
from tests.support.hostile_json import DIGITS, NESTED


@pytest.mark.parametrize("text", ["", "{", NESTED, DIGITS], ids=["empty", "cut off", "deep", "long"])
def test_damaged_results_are_skipped(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_value({"gpus": 2})
    lines = [f"0: {line}" for line in capsys.readouterr().out.splitlines()]
    damaged = [f"1: {line}" for line in (lines[0][3:], text, lines[-1][3:])]
    assert values_by_task("\n".join([*damaged, *lines, f"{DIGITS}: x"])) == {0: {"gpus": 2}}


@pytest.mark.parametrize("nodes", range(1, 10))
def test_every_pair_meets_once_and_no_node_twice_in_a_round(nodes):
    played = rounds(nodes)
    assert sorted(pair for turn in played for pair in turn) == list(itertools.combinations(range(nodes), 2))
    for turn in played:
        names = [name for pair in turn for name in pair]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "rates, ratio, slow",
    [
        ({"a": 10, "b": 10.1, "c": 9.9, "d": 5}, 0.9, "d has 5"),
        ({"a": 10, "b": 4}, 0.9, "b has 4"),
        ({"a": 10, "b": 9.5}, 0.9, None),
        ({"a": 10}, 0.9, None),
    ],
)
def test_slow_nodes_are_named(rates, ratio, slow):
    finding = judge_rates("speed", "GB/s", rates, ratio)
    assert finding.status == ("warn" if slow else "ok")
    assert bool(finding.advice) == bool(slow)
    assert finding.value.count(" has ") == bool(slow)
    assert slow is None or slow in finding.value


def figures(rates=(700.0, 700.0, 700.0, 700.0), slow_node=None, gbps=40.0):
    """Four processes on as many nodes; all pairs with `slow_node` have a tenth of the bandwidth."""
    hosts = [f"n{number}" for number in range(4)]
    couples = map(list, itertools.combinations(hosts, 2))
    pairs = [{"nodes": pair, "GB/s": gbps / 10 if slow_node in pair else gbps} for pair in couples]
    ranks = [{"host": host, "local": 0, "tflops": rate} for host, rate in zip(hosts, rates, strict=True)]
    return {"ranks": ranks, "all": {"GB/s": gbps}, "pairs": pairs}


def test_measurements_become_findings():
    sound = {finding.name: finding.status for finding in judge_figures(figures(), on_gpus=True)}
    assert sound == {"matrix products": "ok", "all-reduce": "ok", "bandwidth": "ok"}
    slow = {one.name: one for one in judge_figures(figures((700, 420, 700, 700), "n2"), on_gpus=True)}
    assert "n1:0 has 420" in slow["matrix products"].value
    assert slow["bandwidth"].value == "median 40 GB/s; n2 has 4", "the partners of a slow node are not blamed"
    (alone,) = judge_figures(figures() | {"all": None, "pairs": []}, on_gpus=False)
    assert alone.name == "matrix products"


def test_nodes_that_differ():
    facts = {f"n{n}": {"torch": "2.13.0", "kernel": "6.1", "driver": None} for n in range(3)}
    assert [finding.status for finding in judge_likeness(facts)] == ["ok"]
    facts["n1"] = {"torch": "2.12.0", "kernel": "5.4", "driver": None}
    torch, kernel = judge_likeness(facts)
    assert (torch.status, kernel.status) == ("fail", "warn")
    assert torch.value == "2.13.0 on n0, n2; 2.12.0 on n1"


def test_findings_of_nodes_are_merged():
    good = Finding("shm", "ok", "8 GiB", "", "machine")
    bad = Finding("shm", "warn", "1 GiB", "clear it", "machine")
    merged = merge_findings({"n1": [good], "n2": [bad], "n3": [bad]})
    assert merged[0] == Finding("shm", "warn", "n2, n3: 1 GiB", "clear it", "machine")
    assert merged[1].value == "1 checks on 3 nodes are fine"


def test_values_pass_through_mixed_lines_of_tasks(capsys):
    values = {task: {"task": task, "text": [f"\u6578 {n}" for n in range(3000)]} for task in (0, 3, 11)}
    lines = []
    for task, value in values.items():
        print_value("earlier")
        print_value(value)
        lines.append([f"{task:2}: {line}" for line in capsys.readouterr().out.splitlines()])
    assert max(len(line.encode()) for those in lines for line in those) < 1000
    mixed = [line for those in itertools.zip_longest(*lines, fillvalue="welcome") for line in those]
    assert values_by_task("\n".join(mixed)) == values
    assert values_by_task("\n".join(lines[1][:-1]))[3] == "earlier", "a value whose end is missing is not used"
    assert values_by_task("") == {}
