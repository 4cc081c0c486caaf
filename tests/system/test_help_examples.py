"""The first example of each command's help, pasted into a shell in the order of the help. The demo comes first."""

import os
import subprocess
import sys

import pytest

from launchers.display.usage_errors import examples
from tests.launchers.commands.test_command_line import ALL
from tests.support.forked import ROOT


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_example_of_each_command_works_after_the_demo(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    search = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": search, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    first = dict.fromkeys(examples(command)[0] for words, command in ALL.items() if words)
    assert next(iter(first)) == "maskwright demo"
    failures = []
    for line in first:
        shell = ["bash", "-c", line]
        result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            failures.append(f"{line}\n{result.stdout}\n{result.stderr}")
    assert not failures, "\n".join(failures)
