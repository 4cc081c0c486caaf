"""Files of the user in the working folder that are called as our modules, the standard library's or torch's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.common.processes import module_command
from tests.support.text_data import corpus

NAMES = (
    *("pretrain", "data_prep", "launchers", "evaluation", "configs", "torch", "deepspeed", "numpy", "mlflow"),
    *("tokenize", "random", "argparse", "signal", "socket", "tempfile", "multiprocessing", "subprocess", "warnings"),
)
CONFIG = """
run: {dir: run}
data: {train: d, seq_len: 32}
model: {size: {layers: 1, hidden: 16, heads: 2}}
train: {steps: 2, global_batch_size: 4, precision: fp32}
track: {uri: none}
"""


def fill_with_names(folder: Path, names: tuple[str, ...] = NAMES) -> None:
    """Write modules that leave a file EXECUTED-NAME when they are imported, and then fail."""
    for name in names:
        mark = folder / f"EXECUTED-{name}"
        text = f"open({str(mark)!r}, 'w').close()\nraise SystemExit('executed {name}.py')\n"
        (folder / f"{name}.py").write_text(text)


def executed(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("EXECUTED-*")]


def run(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)


def test_commands_in_a_folder_full_of_such_files(tmp_path: Path) -> None:
    """The installed command: worker processes of a preparation, and the rank of a run."""
    maskwright = str(Path(sys.executable).with_name("maskwright"))
    corpus(tmp_path / "a.jsonl", 300)
    (tmp_path / "c.yaml").write_text(CONFIG)
    fill_with_names(tmp_path)
    for line in (
        "tokenizer train --input a.jsonl --kind wordpiece --vocab-size 100 --out tok",
        "prep run --workers 2 --input a.jsonl --tokenizer tok --out d",
        "prep verify d --workers 2",
        "train c.yaml --procs 1",
    ):
        ended = run(tmp_path, [maskwright, *line.split()])
        assert (ended.returncode, executed(tmp_path)) == (0, []), f"{line}\n{ended.stdout}{ended.stderr}"
    assert "completed after step 2" in ended.stderr


@pytest.mark.parametrize("version", sorted({(3, 10), sys.version_info[:2]}), ids=str)
def test_a_module_of_ours_is_found_before_such_files(
    version: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms of the command. The user's PYTHONPATH keeps its effect."""
    fill_with_names(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sitecustomize.py").write_text("print('PYTHONPATH is read')")
    monkeypatch.chdir(tmp_path)
    command = module_command("launchers.cli", "--version", version=version)
    ended = run(tmp_path, command, PYTHONPATH=str(tmp_path / "more"))
    assert ended.stdout.startswith("PYTHONPATH is read\nmaskwright "), ended.stderr
    assert not executed(tmp_path)


def test_a_rank_that_another_launcher_starts(tmp_path: Path) -> None:
    """`python -m pretrain.train`, as torchrun and DeepSpeed start it, puts the working folder first."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    fill_with_names(tmp_path, ("torch", "numpy", "mlflow", "argparse", "tempfile", "yaml", "pydantic"))
    ended = run(tmp_path, [sys.executable, "-m", "pretrain.train", "--config", "c.yaml"])
    assert "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR not set" in ended.stderr
    assert not executed(tmp_path)
