"""Commands refuse missing files and folders before they import anything that takes seconds."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.datasets import make_dataset
from tests.support.forked import ROOT

# Runs commands one after the other; prints for each its exit code, its message and the slow packages imported so far.
PROGRAM = """
import contextlib, io, json, sys
from launchers.cli import main
found = []
for words in json.load(sys.stdin):
    sys.argv = ["maskwright", *words]
    code, said = None, io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
    heavy = [name for name in ("torch", "transformers", "deepspeed", "mlflow") if name in sys.modules]
    found.append([code, said.getvalue(), heavy])
print(json.dumps(found))
"""
MODEL = "a folder that `maskwright export` wrote"
CASES = {
    "export NONE": "does not exist",
    "export RUN": "has no checkpoint to export",
    "evaluate NONE --data DATA": MODEL,
    "evaluate MODEL --data NONE": "No data set at",
    "evaluate MODEL --unigram NONE --pairs TEXT": "No data set at",
    "finetune NONE --task tokens --train TEXT --valid TEXT": MODEL,
    "finetune MODEL --task tokens --train NONE --valid TEXT": "No file",
    "generate NONE": MODEL,
    "generate a/typo": "For a model of the Hub, write hub:a/typo.",
    "merge NONE MODEL --out NONE": "does not exist",
    "branch RUN CONFIG": "is not RUN@STEP",
    "replay NONE --step 1": "does not exist",
    "report NONE": "does not exist",
    "track sync NONE": "does not exist",
    "track models NONE": "does not exist",
    "checkpoints NONE": "does not exist",
    "train NONE": "No config file at",
    "plan NONE": "No config file at",
    "study sweep NONE --over optim.lr=1": "No config file at",
    "launch slurm NONE --nodes 1": "No config file at",
    "mask show text --tokenizer NONE": "No tokenizer at",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """The messages of the commands, by their words."""
    folder = tmp_path_factory.mktemp("inputs")
    places = {name: str(folder / name.lower()) for name in ("NONE", "RUN", "MODEL", "DATA", "TEXT")}
    (folder / "run").mkdir()
    (folder / "run" / "journal.jsonl").write_text("")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "text").write_text("a text\n")
    make_dataset(folder / "data", [[5, 6, 7] * 20], 20)
    commands = [[places.get(word, word) for word in words.split()] for words in CASES]
    environment = os.environ | {"COLUMNS": "1000"}
    program, given = [sys.executable, "-c", PROGRAM], json.dumps(commands)
    said = subprocess.check_output(program, input=given, cwd=ROOT, env=environment, text=True)
    return dict(zip(CASES, json.loads(said), strict=True))


@pytest.mark.parametrize("words", CASES)
def test_a_missing_input_is_refused_before_slow_imports(refusals, words):
    code, said, heavy = refusals[words]
    assert code == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert CASES[words] in said
    assert heavy == []
