"""A small tokenizer for tests of preparations."""

from pathlib import Path

import pytest

from data_prep.tokenizer import train_tokenizer
from tests.support.prep import texts


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WordPiece that spells each word of tests.support.prep with one token."""
    folder = tmp_path_factory.mktemp("tokenizer") / "tok"
    train_tokenizer(texts(0, 300), "wordpiece", 120, folder)
    return folder
