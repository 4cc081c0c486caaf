"""The command line: help, version, examples, unknown words, and options that take no URL."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from data_prep.common.errors import UserError
from launchers.arguments import local
from launchers.display.usage_errors import examples
from tests.contracts.test_docs import check_command
from tests.support.forked import ROOT
from tests.support.in_process import app, command


def commands(words: tuple[str, ...] = (), found: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of the program, of each group, and of each command."""
    found = found or typer.main.get_command(app)
    yield words, found
    for name, inner in getattr(found, "commands", {}).items():
        yield from commands((*words, name), inner)


ALL = dict(commands())
every_command = pytest.mark.parametrize("words", ALL, ids=" ".join)


@every_command
def test_help_and_version_are_everywhere(words):
    short, long = command(*words, "-h"), command(*words, "--help")
    assert short == long
    assert (short.code, short.err) == (0, "")
    assert command(*words, "--version") == (0, f"maskwright {version('maskwright')}\n", "")


@pytest.mark.parametrize("words", [words for words in ALL if words], ids=" ".join)
def test_each_example_can_be_parsed(words):
    found = examples(ALL[words])
    assert found, "no example"
    for line in found:
        _, *rest = shlex.split(line.partition(" < ")[0].partition(" > ")[0])
        assert tuple(rest[: len(words)]) == words, line
        check_command(rest, complete=True)


@pytest.mark.parametrize("words", [words for words in ALL if hasattr(ALL[words], "commands")], ids=" ".join)
def test_a_list_of_commands_says_what_each_does(words):
    shown = " ".join(command(*words, "--help").out.split())
    for name, inner in ALL[words].commands.items():
        first = re.match(r".*?\.(?= |$)", " ".join(inner.help.split()))
        assert first, f"the help of {name} has no sentence"
        assert f" {name} {first[0]}" in shown


def test_the_help_says_where_to_begin():
    text = command("-h").out
    assert "Start with the demo" in text
    assert "docs/quickstart.md" in text
    order = ["demo", "init", "train", "status", "export"]
    places = [text.index(f"maskwright {words} ") for words in order]
    assert places == sorted(places)


@every_command
def test_the_help_fits_one_screen(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown = command(*words, "--help").out.splitlines()
    assert len(shown) <= 57
    copied = re.sub(r"\\\n +", "", "\n".join(shown))
    for line in examples(ALL[words]):  # not wrapped, so that it can be copied
        assert f"    {line}\n" in copied


WITHOUT_JSON = {
    *("demo", "init", "train", "branch", "stop", "export", "publish", "tokenizer train"),
    *("prep run", "prep task", "prep merge", "prep weights", "mask show"),
    *("study sweep", "study run", "track models", "track export", "launch slurm", "launch prep"),
}
"""Commands that do something, or print a text."""


def test_each_other_command_has_json():
    single = {" ".join(words): found for words, found in ALL.items() if not hasattr(found, "commands")}
    found = {name for name, one in single.items() if not any("--json" in parameter.opts for parameter in one.params)}
    assert found == WITHOUT_JSON


@pytest.mark.parametrize(
    ("typed", "wanted"), [("maskwright che", {"checkpoints"}), ("maskwright prep verify --j", {"--json"})]
)
def test_bash_completes_commands_and_options(typed, wanted):
    place = str(len(typed.split()) - 1)
    asked = {"_MASKWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": place}
    program = [sys.executable, "-m", "launchers.cli"]
    result = subprocess.run(program, env=os.environ | asked, capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(result.stdout.split()) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("trian c.yaml", "No such command 'trian'. Did you mean 'train', 'track'?"),
        ("prep rnu", "No such command 'rnu'. Did you mean 'run'? See maskwright prep --help."),
        ("xyzzy", "No such command 'xyzzy'. See maskwright --help."),
        ("train", "Missing argument 'CONFIG'. Example: maskwright train configs/demo.yaml"),
        ("replay r", "Missing option '--step'. Example: maskwright replay runs/demo --step 120"),
        ("prep task", "Missing argument 'OUT'. Example: maskwright prep task data/books 0"),
        ("train c.yaml --proc 2", "No such option: --proc (Possible options: --procs). See maskwright train --help."),
        ("train c.yaml -p 2", "No such option: -p. See maskwright train --help."),
        ("train c.yaml --train.steps=5", "Write keys of the config without dashes: train.steps=VALUE."),
        ("train c.yaml --procs", "Option '--procs' requires an argument. See maskwright"),
        ("train c.yaml --procs two", "--procs must be a whole number, not 'two'."),
        ("train c.yaml --procs 1.5", "--procs must be a whole number, not '1.5'."),
        ("train c.yaml --procs 0", "--procs must be 1 or more, not 0."),
        ("report r --open=yes", "Option '--open' does not take a value."),
        ("export a b", "Got unexpected extra argument(s) (b). See maskwright export --help."),
        ("tokenizer train --input a --out b --vocab-size 30k", "not '30k'."),
        ("tokenizer train --input a --out b --vocab-size 3e4", "not '3e4'."),
        ("audit r --tolerance 15%", "--tolerance must be a number, not '15%'."),
        ("audit r --tolerance 15", "--tolerance must be 1 or less, not 15. For 15 percent, write 0.15."),
    ],
)
def test_a_command_line_that_cannot_be_parsed(line, wanted):
    ended = command(*line.split())
    assert (ended.code, ended.out) == (2, "")
    (message,) = ended.err.splitlines()
    assert message.startswith("error: ")
    assert wanted in message
    assert len(message) <= 300


def test_a_message_is_one_line_and_shows_text_as_it_is(tmp_path):
    ended = command("train", tmp_path / "a\nb [red] :smile:.yaml")
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert "b [red] :smile:.yaml" in line


def test_a_command_imports_no_other_commands():
    """Each process of an array of small tasks would pay for them."""
    code = "import sys; from launchers.app import program as of; of(['prep', 'run']); print(*sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    names = {name for name in done.stdout.split() if name.startswith(("launchers.commands.", "pretrain.config"))}
    assert names == {"launchers.commands.prep_run"}


def test_a_room_does_not_import_the_programs_in_it():
    """Otherwise `python -m` warns on standard error, in every run, that the module is imported already."""
    programs = {"launchers.local.start_ranks", "launchers.doctor.node_report", "launchers.doctor.network_test"}
    programs |= {f"launchers.slurm.{name}" for name in ("supervisor", "node_entry", "node_health")}
    code = "import sys, launchers.local, launchers.doctor, launchers.slurm; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert programs & {*done.stdout.split()} == set()


WRITING = ("prep run", "prep weights", "tokenizer train", "export", "merge", "finetune", "report")
OUTPUT_OPTIONS = [
    *((command, "--out") for command in WRITING),
    *((command, "--json") for command in ("evaluate", "finetune", "merge")),
    ("demo", "--dir"),
]


@pytest.mark.parametrize(("command", "option"), OUTPUT_OPTIONS)
def test_a_url_is_refused_before_anything_is_read(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"s3://bucket/data is a URL, and output must be local"):
        app([*command.split(), option, "s3://bucket/data"], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_paths_are_taken_and_queries_are_not_shown():
    assert local("runs/a") == local(Path("runs/a")) == Path("runs/a")
    with pytest.raises(UserError, match=r"^https://host/ is a URL"):
        local("https://host/?signature=secret")


@pytest.mark.parametrize("start", ["from launchers.cli import main; main()", "import maskwright"])
def test_windows_is_refused_in_one_line(start):
    """Its Python has no fcntl, on which the imports would fail."""
    code = f"import sys; sys.platform, sys.modules['fcntl'] = 'win32', None; {start}"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    last = ended.stderr.splitlines()[-1]
    said = "rror: Maskwright does not run on Windows. Install WSL2 with `wsl --install`, and Maskwright in it."
    assert last.endswith(said)
    assert "main" not in start or ended.stderr == f"{last}\n"
