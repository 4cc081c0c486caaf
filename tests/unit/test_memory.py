"""Memory that is freed is used again, not claimed anew from the system."""

import subprocess
import sys

import pytest

from tests.support.ranks import ROOT

# Fills and frees a block of 128 MiB, again and again, in a process of its own; prints how many pages were mapped.
CODE = """
import resource
import numpy as np
from pretrain.memory import keep_freed_memory
print({keep} and keep_freed_memory())
np.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_mapped(keep: bool) -> int:
    command = [sys.executable, "-c", CODE.format(keep=keep)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kept, pages = done.stdout.split()
    if keep and kept == "False":
        pytest.skip("the C library cannot keep memory")
    return int(pages)


def test_freed_memory_is_kept():
    anew, kept = pages_mapped(keep=False), pages_mapped(keep=True)
    assert anew > 100  # of 2 MiB, where the kernel gives huge ones
    assert kept < anew / 10
