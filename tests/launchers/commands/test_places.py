"""Output options refuse URLs: pathlib would create a local folder `s3:`."""

from pathlib import Path

import pytest

from data_prep.common.errors import UserError
from launchers.app import app
from launchers.arguments import local

COMMANDS = (
    *("prep run", "prep weights"),
    *("tokenizer train", "export", "merge", "evaluate", "finetune", "report"),
)
OPTIONS = [
    *((command, "--out") for command in COMMANDS if command != "evaluate"),
    *((command, "--json") for command in ("evaluate", "finetune", "merge")),
    ("demo", "--dir"),
]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_url_is_refused_before_anything_is_read(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"s3://bucket/data is a URL, and output must be local"):
        app([*command.split(), option, "s3://bucket/data"], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_paths_are_taken_and_queries_are_not_shown():
    assert local("runs/a") == local(Path("runs/a")) == Path("runs/a")
    with pytest.raises(UserError, match=r"^https://host/ is a URL"):
        local("https://host/?signature=secret")
