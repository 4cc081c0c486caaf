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
