"""Each tutorial's commands, pasted in order into an empty folder beside the configs, give what the page promises.

Blocks of bash and Python run; a block in another language is not a command. The list under "What you have" names files.
The first example of each command's help works after the demo.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.display.usage_errors import examples
from tests.launchers.commands.test_command_line import ALL
from tests.support.forked import ROOT

TUTORIALS = ROOT / "docs/tutorials"
FAST = ("first-model",)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of the commands of a page."""
    return re.findall(r"^```(bash|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def promised(page: str) -> list[str]:
    """The paths that the list under "What you have" begins with."""
    return re.findall(r"^- `([^`]+)`", page.partition("## What you have\n")[2].partition("\n## ")[0], re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    """The output of a command that fails in a folder with the configs; empty if it succeeds."""
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": search, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    return f"{command[-1]}\n{result.stdout}\n{result.stderr}" if result.returncode else ""


def run_page(page: str, folder: Path) -> None:
    """Run the commands of a page. Raises AssertionError with the output of the first that fails."""
    for language, text in blocks(page):
        python = language == "python"
        failure = run([sys.executable, "-c", text] if python else ["bash", "-euo", "pipefail", "-c", text], folder)
        assert not failure, failure


PAGES = [
    pytest.param(path, marks=() if path.stem in FAST else pytest.mark.slow, id=path.stem)
    for path in sorted(TUTORIALS.glob("*.md"))
]


@pytest.mark.parametrize("path", PAGES)
def test_the_commands_of_a_tutorial_make_what_it_promises(path, tmp_path):
    page = path.read_text(encoding="utf-8")
    assert blocks(page)
    run_page(page, tmp_path)
    files = promised(page)
    assert files, "the page promises nothing"
    for file in files:
        assert (tmp_path / file).exists(), f"{path.name} promises {file}"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_example_of_each_command_works_after_the_demo(tmp_path):
    first = dict.fromkeys(examples(command)[0] for words, command in ALL.items() if words)
    assert next(iter(first)) == "maskwright demo"
    failures = filter(None, (run(["bash", "-c", line], tmp_path) for line in first))
    assert not [*failures]
