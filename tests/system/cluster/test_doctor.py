"""`maskwright doctor --cluster` on a real Slurm: healthy nodes, a slow network, and an absent node."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster.cluster import Cluster
from tests.system.cluster.jobs import ROOT, maskwright


def examine(cluster: Cluster, *words: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Findings by name, and the figures."""
    report = json.loads(maskwright(cluster, "doctor", *words, "--json", check=False))
    return {one["name"]: one for one in report["findings"] if one["group"] == "cluster"}, report["measured"]


def test_two_nodes(cluster: Cluster) -> None:
    findings, measured = examine(cluster, "--nodes", "2", "--gpus-per-node", "2")
    assert findings["answers"]["value"] == "2 nodes: n1, n2"
    assert findings["sameness"]["status"] == "ok"
    ranks = [(rank["host"], rank["local"]) for rank in measured["ranks"]]
    assert ranks == [("n1", 0), ("n1", 1), ("n2", 0), ("n2", 1)]
    assert min(rank["tflops"] for rank in measured["ranks"]) > 0
    (pair,) = measured["pairs"]
    assert pair["nodes"] == ["n1", "n2"]
    assert 1e-4 < pair["GB/s"] < 1000
    assert measured["all"]["GB/s"] > 0
    assert findings["all-reduce"]["value"].endswith("over 4 processes")
    assert measured["nodes"]["n1"] == measured["nodes"]["n2"]


def test_the_login_node(cluster: Cluster) -> None:
    report = json.loads(maskwright(cluster, "doctor", "--json", check=False))
    found = {one["name"]: one for one in report["findings"] if one["group"] == "slurm"}
    assert {name for name, one in found.items() if one["status"] != "ok"} == {"kill wait"}
    assert found["controller"]["value"].endswith("is UP")
    assert found["kill wait"]["value"].startswith("5 s")


@pytest.mark.slow
def test_a_node_with_a_slow_network_is_named(cluster: Cluster) -> None:
    limit = ["tbf", "rate", "50mbit", "burst", "32kb", "latency", "1s"]
    cluster.run("tc", "-n", "n2", "qdisc", "add", "dev", "eth0", "root", *limit)
    try:
        findings, measured = examine(cluster, "--nodes", "3")
    finally:
        cluster.run("tc", "-n", "n2", "qdisc", "del", "dev", "eth0", "root")
    assert len(measured["pairs"]) == 3
    assert findings["bandwidth"]["status"] == "warn", measured
    assert "n2 has" in findings["bandwidth"]["value"]
    assert "n1 has" not in findings["bandwidth"]["value"], "the others are not blamed"
    assert "n3 has" not in findings["bandwidth"]["value"]
    assert findings["answers"]["status"] == "ok"


@pytest.mark.slow
def test_a_node_that_differs_and_one_that_is_away(cluster: Cluster, tmp_path: Path) -> None:
    """Python on one of the three nodes reports another kernel, and on a third it does not start."""
    script = tmp_path / "job.sh"
    report = tmp_path / "report.json"
    script.write_text(f"#!/bin/bash\n'{sys.executable}' -m launchers.cli doctor --cluster --json >'{report}'\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, platform, sys\n"
        "name = os.environ.get('SLURMD_NODENAME') if 'SLURM_PROCID' in os.environ else None\n"
        "if name == 'n3' and os.environ.get('SLURM_STEP_ID', '').isdecimal(): sys.exit(3)\n"
        "if name == 'n2': platform.release = lambda: '4.18'\n"
    )
    options = ["--parsable", "--nodes=3", f"--chdir={ROOT}", "--output=/dev/null"]
    job = cluster.run("sbatch", *options, script, PYTHONPATH=f"{tmp_path}:{ROOT}", OMP_NUM_THREADS="1").strip()
    cluster.wait(job, 240)
    findings = {one["name"]: one for one in json.loads(report.read_text())["findings"]}
    assert findings["answers"]["status"] == "fail"
    assert findings["answers"]["value"].startswith("n3 of 3 nodes gave none")
    assert "4.18 on n2" in findings["same kernel"]["value"]
    assert findings["all-reduce"]["value"].endswith("over 2 processes"), "the other two are measured"
