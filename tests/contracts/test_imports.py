"""Modules and commands that must start within moments: none imports torch or other slow packages."""

import subprocess
import sys

import pytest

from tests.support.forked import ROOT

SLOW = ("torch", "deepspeed", "transformers", "mlflow", "datasets")
SLOW_FOR_COMMANDS = (*SLOW, "scipy", "pyarrow", "evaluation")
MODULES = ["maskwright", "pretrain.config", "launchers.cli", "launchers.local.local_launch", "data_prep.format.reader"]
CASES = [(f"import {module}", (*SLOW, "fsspec")) for module in MODULES]
CASES += [
    (
        f"import launchers.cli\nsys.argv[1:] = {words}\ntry: launchers.cli.main()\nexcept SystemExit: pass",
        SLOW_FOR_COMMANDS,
    )
    for words in (["--help"], ["train", "--help"], ["status", "no-such-run"])
]


@pytest.mark.parametrize(("code", "unwanted"), CASES)
def test_no_slow_package_is_imported(code, unwanted):
    code = f"import sys\n{code}\nprint('LOADED', [name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []", done.stderr
