"""Bad input through the command line: one line on stderr, no traceback, a non-zero exit code, no partial output."""

import json
import shutil
from pathlib import Path

import pytest

from pretrain.run import RunFolder
from tests.support import runs, text_data


def refused(*arguments: str | Path, real: bool = False) -> str:
    """The one-line error of a command, after the progress of the start."""
    result = runs.maskwright(*arguments, real=real)
    assert result.returncode == 1, result.stdout + result.stderr
    lines = runs.complaints(result.stderr)
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.stdout
    return lines[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """train and valid, made with the tokenizer tok, and foreign, made from the same text with another tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    data = text_data.text_data(folder)
    text = folder / "text.jsonl"
    other = text_data.train_tokenizer(text, folder / "other", vocab_size=120)
    text_data.make("prep", "run", "--input", text, "--tokenizer", other, "--out", folder / "foreign")
    return data


@pytest.fixture
def write(data, tmp_path):
    def writer(**overrides) -> Path:
        return runs.write_config(tmp_path / "config.yaml", runs.tiny_config(data, tmp_path / "run", **overrides))

    return writer


# Refused before a process starts.


def test_missing_config(tmp_path):
    assert refused("train", tmp_path / "none.yaml") == (
        f"error: No config file at {tmp_path}/none.yaml. Correct the path; configs/ has examples."
    )


def test_unknown_key(write):
    assert "Unknown key train.step. Did you mean train.steps?" in refused("train", write(train__step=5), real=True)


def test_wrong_type(write, tmp_path):
    assert "optim.lr must be a number, not 'fast'." in refused("train", write(), "optim.lr=fast")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["data.train", "data.valid"])
def test_missing_data_set(write, tmp_path, key):
    message = refused("train", write(), f"{key}={tmp_path}/nothing")
    assert f"No data set at {tmp_path}/nothing. Create it with `maskwright prep run`, or correct {key}." in message
    assert not (tmp_path / "run").exists()


def test_unfinished_data_set(write, data, tmp_path):
    shutil.copytree(data / "train", tmp_path / "unfinished")
    (tmp_path / "unfinished" / "manifest.json").unlink()
    message = refused("train", write(data__train=str(tmp_path / "unfinished")))
    assert "unfinished is an unfinished data set folder, not a data set folder. Finish it with" in message


def test_a_run_folder_that_is_a_file(write, tmp_path):
    (tmp_path / "run").write_text("")
    assert "the run folder cannot be made" in refused("train", write())


@pytest.mark.parametrize("content", [b"", b"\n\n", b'{"text": ""}\n{"text": "  "}\n', b'{"body": "x"}\n'])
def test_empty_corpus(data, tmp_path, content):
    (tmp_path / "empty.jsonl").write_bytes(content)
    message = refused(
        "prep",
        "run",
        "--input",
        tmp_path / "empty.jsonl",
        "--tokenizer",
        data.parent / "tok",
        "--out",
        tmp_path / "set",
    )
    assert "no document" in message
    assert not (tmp_path / "set" / "manifest.json").exists()


def test_tokenizer_without_mask(data, tmp_path):
    shutil.copytree(data.parent / "tok", tmp_path / "tok")
    config = json.loads((tmp_path / "tok/tokenizer_config.json").read_text())
    del config["mask_token"]
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tok/tokenizer.json").write_text(
        (data.parent / "tok/tokenizer.json").read_text().replace("[MASK]", "mäsk")
    )
    message = refused(
        "prep", "run", "--input", data.parent / "text.jsonl", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "set"
    )
    assert "has no mask token ([MASK])" in message
    assert not (tmp_path / "set").exists()


# Refused by two ranks; one prints the error.


def test_damaged_shard(write, data, tmp_path):
    shutil.copytree(data / "train", tmp_path / "damaged")
    (shard,) = (tmp_path / "damaged" / "shards").glob("*.tar")
    content = bytearray(shard.read_bytes())
    content[content.index(b".tokens.npy") + 512 + 128 + 1000] ^= 1  # past the tar and npy headers, among the tokens
    shard.write_bytes(content)
    config = write(data__train=str(tmp_path / "damaged"))
    message = refused("train", config, "--procs", "2")
    assert f"{shard} is damaged" in message
    assert runs.status(tmp_path / "run")["state"] == "failed"
    assert str(shard) in runs.status(tmp_path / "run")["reason"]


def test_valid_from_another_tokenizer(write, data, tmp_path):
    message = refused("train", write(data__valid=str(data.parent / "foreign")), "--procs", "2", real=True)
    assert f"{data.parent}/foreign was made with another tokenizer than {data}/train" in message
    assert not (tmp_path / "run" / "status.json").exists()


def test_batch_that_processes_cannot_share_after_an_earlier_failure(write, tmp_path):
    """An earlier failure's status.json does not silence this one."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_status("failed", 3, 24, "an earlier reason", "run it again")
    message = refused("train", write(), "train.global_batch_size=9", "--procs", "2")
    assert "train.global_batch_size is 9, which 2 processes cannot share evenly" in message
    assert runs.status(tmp_path / "run")["reason"] == "an earlier reason"
