"""The Python package does what the commands do: the same files, figures and refusals.

Commands are forked from a process with all imports. The test of a script and docs/notebook.ipynb start real processes.
"""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import ipykernel  # noqa: F401 (a script may import it; that makes it no notebook)
import numpy as np
import pytest

import maskwright as mw
from maskwright.commands import command_line, output_lines
from pretrain.config_files import override_words
from tests.support import forked, prep, runs


class Made(NamedTuple):
    """What calls made of a text: a file of text, a tokenizer, a data set, the config of a run, and the run."""

    text: Path
    tokenizer: Path
    data: mw.DataSet
    config: Path
    run: mw.Run


@pytest.fixture(scope="module", autouse=True)
def _commands_are_forked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if forked.fits(runs.environment()):
            forking = SimpleNamespace(**vars(subprocess) | {"Popen": forked.ForkedWithPipe})
            patch.setattr("launchers.local.run_commands.subprocess", forking)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    text = folder / "text.jsonl"
    text.write_bytes(prep.jsonl(prep.texts(0, 300)))
    tokenizer = mw.train_tokenizer(text, folder / "tokenizer", vocab_size=120)
    data = mw.prepare([text], tokenizer, folder / "data", valid_fraction=0.1, workers=1)
    config = runs.config_file(folder / "data", folder / "run", train__steps=6)
    return Made(text, tokenizer, data, config, mw.train(config, {"checkpoint.every_steps": np.int64(3)}, procs=1))


def test_a_data_set_is_that_of_the_command(made, tmp_path, capsys):
    words = ("--input", made.text, "--vocab-size", "120", "--out", tmp_path / "tokenizer")
    runs.succeed("tokenizer", "train", *words)
    words = ("--input", made.text, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "data")
    runs.succeed("prep", "run", *words, "--valid-fraction", "0.1")
    assert prep.tree(Path(made.data)) == prep.tree(tmp_path / "data")
    assert (made.data.documents, made.data.train.documents + made.data.valid.documents) == (300, 300)
    assert made.data.tokens == made.data.train.tokens + made.data.valid.tokens
    assert made.data.train.path.endswith("train")
    capsys.readouterr()
    made.data.show(2)
    shown = runs.succeed("prep", "show", tmp_path / "data/train", "2").stdout
    assert capsys.readouterr().out == shown
    assert "block" in shown


def test_masks_are_those_of_the_command(made, capsys):
    mw.show_masks("never mind others", made.tokenizer, {"masking.strategy": {"token": 1, "span": 2}}, steps=2)
    words = ("--tokenizer", made.tokenizer, "masking.strategy={token: 1, span: 2}", "--steps", "2")
    assert capsys.readouterr().out == runs.succeed("mask", "show", "never mind others", *words).stdout


def test_a_run_is_that_of_the_command(made, tmp_path):
    path = tmp_path / "run"
    runs.succeed("train", made.config, f"run.dir={path}", "checkpoint.every_steps=3", "--procs", "1")
    metrics = made.run.metrics
    assert metrics.index.name == "step"
    assert metrics["train/loss"].to_dict() == runs.losses(path) == runs.losses(made.run.path)
    assert metrics["eval/loss"].dropna().to_dict() == runs.metric(path, "eval/loss")
    assert [*made.run.checkpoints] == [3, 6]
    assert repr(made.run) == f"Run({str(made.run.path)!r}): completed, step 6 of 6"
    assert {file.name for file in made.run.path.iterdir()} == {file.name for file in path.iterdir()}


def test_a_report_shows_its_page_in_a_frame_that_reaches_nothing(made):
    report = made.run.report()
    assert report.path == made.run.path / "report.html"
    shown = report._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown


def test_a_model_gives_the_figures_of_the_commands(made, tmp_path):
    model = made.run.export()
    assert model == made.run.export() == made.run.checkpoints[6].parents[1] / "exports/step-00000006"
    ours, theirs = tmp_path / "of_call.json", tmp_path / "of_command.json"
    runs.succeed("evaluate", model, "--data", made.data.valid.path, "--rows", "20", "--json", theirs)
    mw.evaluate(model, made.data.valid, rows=20, out=ours)
    assert ours.read_text() == theirs.read_text()
    filled = mw.fill(made.run, ["never [MASK]", "the [MASK] [MASK]"], top=2)
    assert filled[["text", "mask"]].drop_duplicates().values.tolist()[1:] == [["the [MASK] [MASK]", n] for n in (0, 1)]
    words = ("fill", made.run.path, "never [MASK]", "--top", "2", "--json")
    (mask,) = json.loads(runs.succeed(*words).stdout)[0]["masks"]
    assert filled[["token", "id", "probability"]][:2].to_dict("records") == mask


REFUSED: list[tuple[Callable[[Made], Any], str]] = [
    (
        lambda made: mw.train(made.config, {"train.stpes": 5}),
        "override train.stpes: Unknown key train.stpes. Did you mean train.steps?",
    ),
    (lambda made: mw.train(made.config, procs=0), "--procs"),
    (lambda made: mw.train(made.config, {"run.seed": 8}), "run.seed"),
    (lambda made: mw.Run(made.text), "a run folder"),
    (lambda made: made.run.export(step=4), "no checkpoint of step 4. It has 3, 6."),
    (lambda made: made.run.export(view="diagonal"), "--view"),
    (lambda made: mw.prepare([], made.tokenizer, "out"), "input is empty. Give at least one."),
    (lambda made: mw.prepare(made.text, made.tokenizer, "out", valid_fraction=0.9), "--valid-fraction"),
    (lambda made: mw.prepare(made.text, made.tokenizer, made.data), "was prepared with --valid-fraction 0.1"),
    (lambda made: mw.train_tokenizer(made.text, made.tokenizer), "exists and is not an empty folder"),
    (lambda made: made.data.valid.valid, "has no held-out part"),
    (lambda made: made.data.valid.train, "is the held-out part. Name the folder above it"),
    (lambda made: mw.evaluate(made.run), "Nothing to evaluate on."),
    (lambda made: mw.evaluate(made.run, suite="suite.yaml"), "A suite keeps its results in a file"),
    (lambda made: mw.evaluate(made.run, made.data.valid, limit=3), "--limit is used only with --pairs."),
    (lambda made: mw.show_masks("a", made.tokenizer, {"masking.rate": 2}), "masking.rate"),
    (lambda made: mw.train(made.config, ["train.steps=3"]), "overrides must be a dictionary"),
    (lambda made: mw.fill(made.run, "--no mask"), "No [MASK] in '--no mask'."),
    (lambda made: mw.fill(made.run, []), "text is empty. Give at least one."),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_call_is_refused_in_one_line(made, call, message):
    with pytest.raises(mw.UserError) as error:
        call(made)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_call_shows_the_options_of_its_command_and_takes_no_others(made):
    options = {name: each.default for name, each in inspect.signature(mw.prepare).parameters.items()}
    assert options["deduplicate"] == "none"
    assert "more" not in options
    assert "valid_fraction: share of documents for DIR/valid" in (mw.prepare.__doc__ or "")
    with pytest.raises(TypeError, match="prep run has no option 'valid_frac'; did you mean 'valid_fraction'"):
        mw.prepare(made.text, made.tokenizer, "out", valid_frac=0.1)
    with pytest.raises(TypeError, match="prep run has no option 'sequence_length'"):
        mw.prepare(made.text, made.tokenizer, "out", sequence_length=3)
    with pytest.raises(TypeError, match="no option 'steps'; give keys of the config as a dictionary, such as"):
        mw.train(made.config, steps=3)


WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("tokenizer train", {"lowercase": False, "strip_accents": False, "out": Path("a")}, "--out=a --no-lowercase --"),
    ("tokenizer train", {"input": ["a", Path("=c")], "strip_accents": True}, "--input=a --input==c --strip-accents --"),
    ("evaluate", {"models": ("-a", "b"), "out": "c.json", "seq_len": 64}, "--seq-len=64 --json=c.json -- -a b"),
    ("prep show", {"location": "a", "number": np.int64(2)}, "-- a 2"),
    ("tokenizer train", {"input": ["a", None], "out": "b"}, "--input=a --out=b --"),
    ("fill", {"model": "a", "text": "--top [MASK]", "top": None, "as_json": True}, "--json -- a --top [MASK]"),
]


@pytest.mark.parametrize(("command", "values", "words"), WORDS)
def test_values_become_words_of_the_command_line(command, values, words):
    assert " ".join(command_line(command, values)) == words


def test_a_dictionary_for_a_section_changes_only_its_keys():
    overrides = {"train": {"steps": 20, "precision": "fp32"}, "masking.strategy": {"span": 1}, "run.seed": np.int64(3)}
    words = ["train.steps=20", "train.precision=fp32", "masking.strategy={span: 1}", "run.seed=3"]
    assert override_words(overrides) == words
    nested = {"masking": {"span": {"p": 0.2}, "strategy": {"span": 1}}, "optim.betas": np.array([0.5, 0.75])}
    words = ["masking.span.p=0.2", "masking.strategy={span: 1}", "optim.betas=[0.5, 0.75]"]
    assert override_words(nested) == words


@pytest.mark.parametrize("value", [object(), b"\xff", np.ndarray])
def test_an_object_that_cannot_be_in_a_config_is_refused_by_its_key(value):
    with pytest.raises(mw.UserError, match=r"^run\.dir must be a number, text, list or dict, not"):
        override_words({"run": {"dir": value}})


ADDRESS = "postgresql://me:hunter2@db/x"


@pytest.mark.parametrize(
    "overrides", [[f"track.uri={ADDRESS}"], {"track": ADDRESS}, {"track.uri": [ADDRESS]}, {"track.uri": {ADDRESS: 1}}]
)
def test_the_refusal_of_an_override_shows_no_password(overrides):
    with pytest.raises(mw.UserError) as error:
        mw.train("configs/demo.yaml", overrides)
    assert "hunter2" not in str(error.value)


def test_a_failure_of_the_ranks_is_raised(made):
    """Only they see that the journal cannot be written."""
    folder = made.run.path.with_name("failed")
    (folder / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(mw.UserError, match=r"journal\.jsonl"):
        mw.train(made.config, {"run.dir": folder}, procs=1)


SCRIPT = """
import signal, sys
import maskwright as mw
print(mw.prepare(sys.argv[1], sys.argv[2], sys.argv[3], workers=2))  # its processes must not run this script
try:
    mw.train(sys.argv[4], {"run.dir": sys.argv[5], "train.steps": 3000}, procs=1)
finally:
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, mw.Run(sys.argv[5]))
"""


def test_a_script_is_interrupted_after_a_checkpoint_and_resumes(made, tmp_path):
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    words = [made.text, made.tokenizer, tmp_path / "data", made.config, run]
    with subprocess.Popen([sys.executable, script, *words], env=runs.environment(), stdout=subprocess.PIPE) as process:
        runs.wait_for_step(run, 3)
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    *lines, ended = out.decode().splitlines()
    assert process.returncode == -signal.SIGINT
    assert [line.split("): ")[1].split(",")[0] for line in lines if line.startswith("DataSet(")] == ["300 documents"]
    assert ended.startswith("True Run(")
    assert "stopped, step " in ended
    step = mw.Run(run).status.step
    resumed = mw.train(made.config, {"run.dir": run, "train.steps": step + 2}, procs=1)
    assert (resumed.status.state, len(resumed.metrics)) == ("completed", step + 2)


def test_progress_in_a_cell_replaces_the_line_before(monkeypatch, capsys):
    shown: list[str] = []
    cell = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    with output_lines("maskwright train") as show:
        show("a script, which has imported ipykernel")
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda *_, **__: cell))
    with output_lines("maskwright train") as show:
        for line in ("Starting", "step 1/9 | loss 2", "step 2/9 | eval loss 2", " 50% of 2 tasks", "step 3/9 | loss 1"):
            show(line)
    assert shown == ["step 1/9 | loss 2", " 50% of 2 tasks", "step 3/9 | loss 1", "step 3/9 | loss 1"]
    printed = ["a script, which has imported ipykernel", "Starting", "step 2/9 | eval loss 2"]
    assert capsys.readouterr().out.splitlines() == printed


def test_damaged_lines_of_the_journal_are_left_out_and_counted(made, tmp_path, capsys):
    shutil.copytree(made.run.path, tmp_path / "run")
    with open(tmp_path / "run/journal.jsonl", "a") as journal:
        journal.write("{\n" * 2)
    assert mw.Run(tmp_path / "run").metrics.equals(made.run.metrics)
    assert f"2 damaged lines of {tmp_path / 'run/journal.jsonl'} are left out" in capsys.readouterr().err
