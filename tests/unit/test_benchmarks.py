"""Benchmarks are not run by tests, but they must at least load: they follow the code that they measure."""

import subprocess
import sys

from tests.support.forked import ROOT


def test_the_benchmarks_load():
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    assert "loader" in names
    code = "; ".join(f"import benchmarks.{name}" for name in names)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
