"""Mixtures in a config: data sets with shares."""

from functools import partial

import pytest

from pretrain.config_files import load_config
from tests.support.configs import LEAST, config_file, refusal


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def test_a_mixture_is_a_list_of_paths_with_shares(write):
    config = load_config(write(LEAST), ["data.train=[{path: a, weight: 2}, {path: s3://b/c, weight: 1}]"])
    assert [(source.path, source.weight) for source in config.data.train] == [("a", 2), ("s3://b/c", 1)]
    plain = load_config(write(LEAST), ["data.train=[a, b]"]).data
    assert [(source.path, source.weight, source.epochs) for source in plain.train] == [
        ("a", None, None),
        ("b", None, None),
    ]
    assert "give every source a weight" in refusal(write(LEAST), "data.train=[a, b]", "data.packing=none")
    single = load_config(write(LEAST)).data
    assert [(source.path, source.weight) for source in single.train] == [("data/x", 1)]


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        ("[]", "data.train must be a path, or a list of paths or of {path, weight}, not an empty list."),
        ("", "data.train must be a path, or a list of paths or of {path, weight}, but it is empty."),
        ("[{path: a, weight: 1, epochs: 1}]", "give 'a' either weight or epochs"),
        ("[{path: a, weight: 1}, {path: b, epochs: 1}]", "give every source a weight, or none"),
        ("[{path: a, weight: 1}, b]", "give every source a weight, or none"),
        ("[{path: a, weight: 0}]", "data.train.0.weight must be more than 0, not 0."),
        ("[{path: a, weight: true}]", "data.train.0.weight must be a number, not true."),
        ("[{path: a, wieght: 1}]", "Unknown key data.train.0.wieght. Did you mean data.train.0.weight?"),
    ],
)
def test_mixtures_that_cannot_be(write, sources, wanted):
    assert wanted in refusal(write(LEAST), f"data.train={sources}")
