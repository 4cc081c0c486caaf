"""Modules that must import within moments: none imports torch or other slow packages."""

import subprocess
import sys

import pytest

from tests.support.forked import ROOT

SLOW = ("torch", "deepspeed", "transformers", "mlflow", "datasets", "scipy", "pyarrow", "evaluation")


@pytest.mark.parametrize(
    "module", ["pretrain.config", "launchers.cli", "launchers.local.local_launch", "data_prep.format.reader"]
)
def test_command_line_starts_without_heavy_packages(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('torch', 'deepspeed', 'transformers', 'mlflow', 'datasets', 'fsspec') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], SLOW),
        (["train", "--help"], SLOW),
        (["status", "no-such-run"], SLOW),
    ],
)
def test_help_and_status_import_no_slow_package(words, unwanted):
    code = (
        f"import sys, launchers.cli; sys.argv[1:] = {words}\n"
        "try:\n    launchers.cli.main()\nexcept SystemExit:\n"
        f"    print('LOADED', [m for m in sys.modules if m.startswith({unwanted})])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "LOADED []", found.stderr
