"""Commands of docs/slurm.md: every launch of a run is made, up to its submission."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from tests.support.datasets import make_dataset
from tests.support.forked import ROOT
from tests.support.in_process import app, invoke

PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
SHARED = "/shared"


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in the page's order."""
    assert not re.search(r"^ +```", PAGE, re.MULTILINE), "indented blocks would be overlooked"
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = "".join(blocks("bash")).replace("\\\n", " ").splitlines()
LAUNCHES = [line for line in COMMANDS if line.startswith("maskwright launch slurm")]
LAUNCHES += [f"maskwright launch slurm config-{number}.yaml" for number in range(1, len(blocks("yaml")))]
assert len(LAUNCHES) > 12


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page has in /shared: data, configs and a profile."""
    shared = tmp_path_factory.mktemp("page")
    make_dataset(shared / "data" / "books" / "train", [range(5, 65)] * 300)
    for number, text in enumerate(blocks("yaml")):
        name = f"config-{number}.yaml" if number else "run.yaml"
        (shared / name).write_text(text.replace(SHARED, str(shared)).replace("/scratch", str(shared)))
    (shared / "site.yaml").write_text((ROOT / "configs" / "cluster" / "example.yaml").read_text())
    return shared


@pytest.mark.parametrize("line", LAUNCHES)
def test_launches_give_scripts_that_bash_can_read(shared: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(shared)
    words = shlex.split(line.replace(SHARED, str(shared)), comments=True)[1:]
    script = invoke(*words, "--dry-run").output.partition(f"\n# {shared}")[0]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.startswith("#!/usr/bin/env bash\n")
    assert "launchers.slurm.supervisor" in script


def test_every_option_is_in_a_table() -> None:
    rows = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    launch = typer.main.get_command(app).commands["launch"].commands["slurm"]
    options = [option for option in launch.params if option.param_type_name == "option"]
    assert len(options) > 10
    for option in options:
        assert any(name in rows for name in [*option.opts, *option.secondary_opts]), option.opts
