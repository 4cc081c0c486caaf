"""Modules that must import within moments: none imports torch or other slow packages."""

import subprocess
import sys

import pytest

from tests.support.forked import ROOT


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
        (["--help"], ("launchers.commands.", "launchers.watch", "pretrain.config.", "numpy", "yaml")),
        (["prep", "--help"], ("launchers.commands.", "launchers.watch", "pretrain.config.", "numpy", "yaml")),
        (["status", "no-such-run"], ("launchers.commands.train", "evaluation", "torch", "mlflow", "transformers")),
    ],
)
def test_a_command_imports_no_other_command(words, unwanted):
    code = (
        f"import sys, launchers.cli; sys.argv[1:] = {words}\n"
        "try:\n    launchers.cli.main()\nexcept SystemExit:\n"
        f"    print('LOADED', [m for m in sys.modules if m.startswith({unwanted})])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "LOADED []", found.stderr
