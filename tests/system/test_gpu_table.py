"""The script of the GPU table keeps what a phase measured before it failed or ran out of time."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import gpu_table
from benchmarks.gpu_phases import Phase, Request

REQUEST = Request(Path("unused"), "cpu", 1, True)
STEPS = {
    "tokens per second": 1.0,
    "least": 1.0,
    "most": 1.0,
    "TFLOP/s": 1.0,
    "computed TFLOP/s": 1.0,
    "peak bytes": 1,
    "slots filled": 1.0,
    "host waits per step": None,
}
# In the place of the script: it measures one variant; then it ends, or goes on for a minute.
SCRIPT = f"""
import json, sys, time
from pathlib import Path
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({{"plain": {STEPS}}}))
time.sleep(60) if "steps slow" in sys.argv else sys.exit(3)
"""


def test_a_phase_that_fails_or_is_ended_keeps_its_first_results(monkeypatch, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()  # or the installed package is found first
    (tmp_path / "benchmarks/gpu_table.py").write_text(SCRIPT)
    monkeypatch.setattr(gpu_table, "ROOT", tmp_path)
    results = {
        name: gpu_table.outcome(Phase(name, 1, lambda request: iter([])), REQUEST, 3, tmp_path)
        for name in ("steps slow", "steps broken")
    }
    assert [one["result"] for one in results.values()] == [{"plain": STEPS}] * 2
    page = gpu_table.page(results, REQUEST)
    assert page.count("| plain | 1 (1 to 1) |") == 2
    assert "| steps slow | ended after its limit of 0.1 minutes |" in page
    assert "| steps broken | exit code 3 |" in page


def test_a_phase_saves_each_value_as_soon_as_it_is_known(monkeypatch, tmp_path):
    def measure(request):
        yield "plain", 1
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_table, "phases", lambda request: [Phase("steps case", 1, measure)])
    path = tmp_path / "answer.json"
    arguments = argparse.Namespace(data=None, device="cpu", threads=1, quick=True, phase="steps case", json=path)
    arguments.variants, arguments.search_minutes = ["plain"], 0.0
    with pytest.raises(RuntimeError):
        gpu_table.measure_here(arguments)
    assert json.loads(path.read_text()) == {"plain": 1}
