"""The benchmark of the step finishes on a GPU, with transformers' collator in worker processes."""

import sys

from benchmarks.harness import ROOT, call


def test_the_step_is_compared_with_transformers(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.step", "--config", "mini-128", "--rounds", "1", "--steps", "2"]
    call([*command, "--search-minutes", "0", "--out", page], cwd=ROOT)
    assert "transformers, sdpa, padded to the longest of a batch, any order" in page.read_text()
