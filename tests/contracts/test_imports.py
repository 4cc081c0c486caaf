"""Modules and commands that must start within moments: none imports torch or other slow packages."""

import subprocess
import sys

import pytest

from tests.support.forked import ROOT

SLOW = {"torch", "deepspeed", "transformers", "mlflow", "datasets"}
OF_MODULES, OF_COMMANDS = SLOW | {"fsspec"}, SLOW | {"scipy", "pyarrow", "evaluation"}
MODULES = ["maskwright", "pretrain.config", "launchers.cli", "launchers.local.local_launch", "data_prep.format.reader"]
IMPORTS = [f"import {module}" for module in MODULES]
COMMANDS = [
    f"import launchers.cli\nsys.argv[1:] = {words}\ntry: launchers.cli.main()\nexcept SystemExit: pass"
    for words in (["--help"], ["train", "--help"], ["status", "no-such-run"])
]


@pytest.mark.parametrize(("steps", "unwanted"), [(IMPORTS, OF_MODULES), (COMMANDS, OF_COMMANDS)], ids=["import", "run"])
def test_no_slow_package_is_imported(steps, unwanted):
    """All in one process; the first step that imports one is the wrong one."""
    code = "import sys\n" + "".join(f"{step}\nprint('LOADED', *({unwanted} & {{*sys.modules}}))\n" for step in steps)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("LOADED")] == ["LOADED"] * len(steps)
