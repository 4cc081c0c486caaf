"""`--json`: standard output is JSON and nothing else; progress and notes go to standard error."""

import json
from pathlib import Path

import pytest

from tests.launchers.commands.test_command_line import ALL, WITHOUT_JSON
from tests.support import runs, text_data

TO_A_FILE = {"evaluate", "finetune", "merge"}  # --json FILE
COMMANDS = {
    "audit": ["run", "--steps", "3:4"],
    "checkpoints": ["run"],
    "config show": ["run.yaml", "--diff", "run"],
    "doctor": ["run.yaml"],
    "fill": ["run", "the old [MASK] saw the king."],
    "generate": ["run", "--prompt", "the old", "--length", "3"],
    "plan": ["run.yaml"],
    "prep info": ["data/train"],
    "prep show": ["data/train", "0"],
    "prep verify": ["data/train"],
    "replay": ["run", "--step", "2"],
    "report": ["run"],
    "status": ["run"],
    "track sync": ["run"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, its data and its config."""
    folder = tmp_path_factory.mktemp("json")
    data = text_data.text_data(folder)
    steps = {"train__steps": 4, "checkpoint__every_steps": 2, "schedule__warmup_steps": 1, "eval": {"every_steps": 4}}
    runs.trained(data, folder / "run", **steps)
    return folder


def test_every_command_with_json_is_in_the_table():
    single = {" ".join(words) for words, one in ALL.items() if not hasattr(one, "commands")}
    assert {*COMMANDS, *TO_A_FILE} == single - WITHOUT_JSON


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_is_json_alone(folder, command):
    done = runs.maskwright(*command.split(), *COMMANDS[command], "--json", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    decoder, place, values = json.JSONDecoder(), 0, 0
    while place < len(done.stdout):  # some commands print an object a line
        _, place = decoder.raw_decode(done.stdout, place)
        values += 1
        assert done.stdout[place : place + 1] == "\n"
        place += 1
    assert values
