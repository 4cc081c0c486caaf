"""Shards in the tools of docs/compatibility.md, and the same checks with a changed shard."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.conformance.shard_checks import Documents
from tests.conformance.table import SHARD_TOOLS, Tool, name_of
from tests.support import runs, text_data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two inputs, and so of two shards."""
    folder = tmp_path_factory.mktemp("shards")
    texts = [text_data.corpus(folder / f"{seed}.jsonl", 100, seed) for seed in (0, 1)]
    tokenizer = text_data.train_tokenizer(texts[0], folder / "tokenizer")
    runs.succeed("prep", "run", *(word for text in texts for word in ("--input", text)),
                 "--tokenizer", tokenizer, "--out", folder / "data")  # fmt: skip
    return folder / "data"


@pytest.fixture(scope="module")
def wanted(dataset: Path) -> Documents:
    """The ids that the tokenizer gives for the texts."""
    tokenizer = AutoTokenizer.from_pretrained(dataset.parent / "tokenizer")
    lines = [line for seed in (0, 1) for line in (dataset.parent / f"{seed}.jsonl").read_text().splitlines()]
    return tokenizer([json.loads(line)["text"] for line in lines], add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("tool", SHARD_TOOLS, ids=name_of)
def test_shards_are_read(tool: Tool, dataset: Path, wanted: Documents, tmp_path: Path) -> None:
    tool.check(shutil.copytree(dataset, tmp_path / "data"), wanted)


@pytest.mark.parametrize("tool", SHARD_TOOLS, ids=name_of)
def test_a_check_notices_a_changed_token(tool: Tool, dataset: Path, wanted: Documents, tmp_path: Path) -> None:
    spoiled = shutil.copytree(dataset, tmp_path / "data")
    shard = sorted((spoiled / "shards").glob("*.tar"))[1]
    content = bytearray(shard.read_bytes())
    content[content.index(b".tokens.npy") // 512 * 512 + 512 + 128] ^= 1  # the first token, past both headers
    shard.chmod(0o644)
    shard.write_bytes(content)
    with pytest.raises(AssertionError):
        tool.check(spoiled, wanted)
