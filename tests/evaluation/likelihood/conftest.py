"""Corpora of two tokenizers, shared by the tests of this folder."""

from pathlib import Path

import pytest

from tests.support.evaluated import corpora


@pytest.fixture(scope="package")
def corpus(tmp_path_factory) -> dict[str, Path]:
    return corpora(tmp_path_factory.mktemp("corpora"))
