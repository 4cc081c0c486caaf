"""What `maskwright doctor --cluster` makes of what nodes have measured."""

import itertools
import json

import pytest

from launchers.doctor import judge_cluster as judge
from launchers.doctor.cluster import judge_measured, least_cores
from launchers.doctor.finding import Finding
from launchers.doctor.pairs import bad_pairs, by_node, clock_offset, outliers, rounds
from launchers.doctor.wire import decode, encode


@pytest.mark.parametrize("nodes", range(1, 10))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(nodes):
    played = rounds(nodes)
    assert sorted(pair for turn in played for pair in turn) == list(itertools.combinations(range(nodes), 2))
    for turn in played:
        names = [name for pair in turn for name in pair]
        assert len(names) == len(set(names))
    assert len(rounds(40, most=5)) == 5


def test_outliers():
    assert outliers({"a": 10, "b": 10.1, "c": 9.9, "d": 5}, 0.9) == {"d": 0.5}
    assert outliers({"a": 10, "b": 4}, 0.9) == {"b": 0.4}, "of two the worse one"
    assert outliers({"a": 10, "b": 9.5}, 0.9) == {}
    assert outliers({"a": 10}, 0.9) == {}
    assert outliers({}, 0.9) == {}
    assert outliers({"a": 10, "b": 8.5, "c": 2}, 0.7) == {"c": pytest.approx(2 / 8.5)}, "three have no spread"
    assert outliers({"a": 1, "b": 1.1, "c": 9}, 3, higher_is_better=False) == {"c": pytest.approx(9 / 1.1)}
    assert outliers({"a": 1, "b": 9}, 3, higher_is_better=False) == {"b": 9}
    assert set(outliers({str(n): 10 for n in range(6)} | {"x": 1, "y": 2}, 0.9)) == {"x", "y"}
    spread = {"a": 4, "b": 6, "c": 8, "d": 10, "e": 12}
    assert outliers(spread, 0.9) == {}, "what spreads anyway has no outliers"


def pairs_of(nodes, value, **special):
    found = dict.fromkeys(itertools.combinations(nodes, 2), value)
    return found | {tuple(names): worse for names, worse in special.items()}


def test_a_bad_node_and_a_bad_way():
    bad_node = pairs_of("abcd", 10.0, ad=2.0, bd=2.0, cd=2.0)
    assert by_node(bad_node) == {"a": 10, "b": 10, "c": 10, "d": 2}
    assert bad_pairs(bad_node, 0.7) == {}
    bad_way = pairs_of("abcd", 10.0, ad=2.0)
    assert bad_pairs(bad_way, 0.7) == {("a", "d"): 0.2}
    assert bad_pairs({("a", "b"): 90.0, ("a", "c"): 1.0, ("b", "c"): 1.1}, 3, higher_is_better=False) == {
        ("a", "b"): pytest.approx(90 / 1.1)
    }


@pytest.mark.parametrize("nodes", ["ab", "abc", "abcdefgh"])
def test_sound_networks_are_sound(nodes):
    for findings in (judge.judge_bandwidth(pairs_of(nodes, 40.0), "nccl"), judge.judge_latency(pairs_of(nodes, 20.0))):
        assert [finding.status for finding in findings] == ["ok"]


def test_slow_nodes_and_ways_are_named():
    (node,) = judge.judge_bandwidth(pairs_of("abc", 40.0, ac=4.0, bc=4.0), "nccl")
    assert node.status == "warn"
    assert "c has 0.1 times the others' with every partner" in node.value
    (way,) = judge.judge_bandwidth(pairs_of("abcd", 40.0, ac=4.0), "nccl")
    assert way.name == "bandwidth of pairs"
    assert "a - c has 0.1" in way.value
    both = judge.judge_bandwidth(pairs_of("abcdef", 40.0, ac=4.0) | {(n, "f"): 4.0 for n in "abcde"}, "nccl")
    assert ["f has" in both[0].value, "a - c has" in both[1].value] == [True, True]
    (late,) = judge.judge_latency(pairs_of("abc", 20.0, ac=400.0, bc=400.0))
    assert "c has 20 times" in late.value


def test_slow_gpus_are_named():
    rates = {f"n{node} gpu {gpu}": 700.0 + gpu for node in range(2) for gpu in range(8)}
    assert judge.judge_rates(rates, "nccl").status == "ok"
    finding = judge.judge_rates(rates | {"n1 gpu 3": 420.0}, "nccl")
    assert finding.status == "warn"
    assert "n1 gpu 3 has 0.6 times" in finding.value
    assert judge.judge_rates({"n1": 0.1, "n2": 0.08}, "gloo").status == "ok"


def test_clocks():
    assert clock_offset(100.0, 105.5, 101.0) == 5.0
    assert judge.judge_clocks({"n2": 0.02}).status == "ok"
    finding = judge.judge_clocks({"n2": 0.02, "n3": -40.0})
    assert finding.status == "warn"
    assert finding.value.startswith("n3 -40.0 s")


def test_nodes_that_differ():
    facts = {f"n{n}": {"torch": "2.13.0", "kernel": "6.1", "driver": None} for n in range(3)}
    assert [finding.status for finding in judge.judge_likeness(facts)] == ["ok"]
    facts["n1"] = {"torch": "2.12.0", "kernel": "5.4", "driver": None}
    torch, kernel = judge.judge_likeness(facts)
    assert (torch.status, kernel.status) == ("fail", "warn")
    assert torch.value == "2.13.0 on n0, n2; 2.12.0 on n1"


def test_findings_of_nodes_are_put_together():
    good = Finding("shm", "ok", "8 GiB", "", "machine")
    bad = Finding("shm", "warn", "1 GiB", "clear it", "machine")
    found = judge.merge_findings({"n1": [good], "n2": [bad], "n3": [bad]})
    assert found[0] == Finding("shm", "warn", "n2, n3: 1 GiB", "clear it", "machine")
    assert found[1].value.startswith("1 of the 3 nodes' own checks")
    assert "n9 of 10 nodes gave none; srun: no route" in (
        judge.judge_answers([f"n{n}" for n in range(10)], [f"n{n}" for n in range(9)], "no route").value
    )


def test_ranks_become_findings():
    def rank(number, gemm):
        one = {"host": f"n{number // 2}", "node": number // 2, "local": number % 2, "backend": "nccl", "gemm": gemm}
        figures = {"GB/s": 40.0, "us": 20.0}
        return one | {"all": figures, "pairs": [[0, 1, figures]] if number == 0 else [], "clocks": {"1": 3.0}}

    findings, measured = judge_measured({number: rank(number, 300.0 if number == 3 else 700.0) for number in range(4)})
    by_name = {finding.name: finding for finding in findings}
    assert "n1 gpu 1" in by_name["matrix products"].value
    assert by_name["bandwidth"].status == by_name["latency"].status == by_name["all-reduce"].status == "ok"
    assert by_name["clocks"].status == "warn"
    assert measured["pairs"] == [{"nodes": ["n0", "n1"], "GB/s": 40.0, "us": 20.0}]
    assert measured["gemm_tflops"]["n1 gpu 1"] == 300.0
    json.dumps(measured)


def test_results_pass_through_mixed_lines():
    values = {rank: {"rank": rank, "text": [str(n * (rank + 1)) for n in range(3000)]} for rank in range(3)}
    lines = [encode(rank, value).splitlines() for rank, value in values.items()]
    assert max(len(line) for those in lines for line in those) < 1000
    assert min(map(len, lines)) > 1
    mixed = [line for those in itertools.zip_longest(*lines, fillvalue="welcome to the cluster") for line in those]
    assert decode("\n".join(mixed)) == values
    assert set(decode("\n".join(line for line in mixed if line != lines[1][0]))) == {0, 2}, (
        "what is cut off is not there"
    )
    assert decode("") == {}


def test_cores_that_a_job_grants():
    assert [least_cores(text) for text in ("8", "8(x2)", "8(x2),4", "16(x12),32(x2)", "")] == [8, 8, 4, 16, 1]
