"""Modules and commands that must start within moments: none imports torch or other slow packages."""

import subprocess
import sys

import pytest

from data_prep.tokenizer import train_tokenizer
from tests.support.forked import ROOT

SLOW = {"torch", "deepspeed", "transformers", "mlflow", "datasets"}
OF_MODULES, OF_COMMANDS = SLOW | {"fsspec"}, SLOW | {"scipy", "pyarrow", "evaluation"}
MODULES = ["maskwright", "pretrain.config", "launchers.cli", "launchers.local.local_launch", "data_prep.format.reader"]
MODULES += ["pretrain.reporting.batch_replay", "launchers.display.marked_text"]
IMPORTS = [f"import {module}" for module in MODULES]
COMMANDS = [
    f"from launchers.cli import main\nsys.argv[1:] = {words}\ntry: main()\nexcept SystemExit as e: assert not e.code"
    for words in (
        ["--help"],
        ["train", "--help"],
        ["status", "tests/contracts/stored/run"],
        ["config", "show", "configs/demo.yaml"],
        ["plan", "configs/bert-base.yaml", "--vocab-size", "30522", "--gpu", "H100"],
        ["mask", "show", "the ship", "--tokenizer", "TOKENIZER"],
    )
]


@pytest.mark.parametrize(("steps", "unwanted"), [(IMPORTS, OF_MODULES), (COMMANDS, OF_COMMANDS)], ids=["import", "run"])
def test_no_slow_package_is_imported(steps, unwanted, tmp_path):
    """All in one process; the first step that imports one is the wrong one."""
    train_tokenizer(["the old ship"], "wordpiece", 40, tmp_path / "tok")
    code = "import sys\n" + "".join(f"{step}\nprint('LOADED', *({unwanted} & {{*sys.modules}}))\n" for step in steps)
    words = [sys.executable, "-c", code.replace("TOKENIZER", str(tmp_path / "tok"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("LOADED")] == ["LOADED"] * len(steps)
