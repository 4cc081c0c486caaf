"""Lengths in tokens, words and bytes: the steps that they become."""

import math
from functools import partial

import pytest

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.config import load_config, save_config
from tests.support.configs import config_file, refusal
from tests.support.prep import jsonl, prepare_files, texts


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set that was prepared from text, and one that does not say how many words it has."""
    from data_prep.tokenizer import train_tokenizer
    from tests.support.datasets import make_dataset

    folder = tmp_path_factory.mktemp("data")
    train_tokenizer(texts(0, 300), "wordpiece", 120, folder / "tok")
    (folder / "a.jsonl").write_bytes(jsonl(texts(1, 200)))
    prepare_files([folder / "a.jsonl"], folder / "tok", folder / "words")
    make_dataset(folder / "old", [[5, 6, 7]] * 20)
    return folder


@pytest.fixture
def write(tmp_path):
    return partial(config_file, tmp_path / "config.yaml")


def least(data, train_tokenizer, **more):
    return {"run": {"dir": "runs/x"}, "data": {"train": str(data), "seq_len": 64}, "train": train_tokenizer, **more}


@pytest.mark.parametrize(("tokens", "steps"), [(1, 1), (2048, 1), (2049, 2), (204_800, 100)])
def test_tokens_are_slots_of_rows(write, data, tokens, steps):
    assert load_config(write(least(data / "words", {"tokens": tokens}))).train.steps == steps


def test_words_and_bytes_are_those_that_the_data_set_counted(write, data):
    totals = Dataset(data / "words").manifest.totals
    for unit, count in (("words", totals.words), ("bytes", totals.text_bytes)):
        rows = 3 * (totals.tokens + 2 * totals.documents) / 64  # three times all of it
        found = load_config(write(least(data / "words", {unit: 3 * count, "global_batch_size": 4})))
        assert found.train.steps == math.ceil(rows / 4)


def test_phases_have_lengths_of_their_own(write, data, tmp_path):
    phases = [
        {"name": "a", "tokens": 64 * 32 * 5},
        {"name": "b", "words": 1000, "data": {"seq_len": 128}, "train": {"global_batch_size": 2}},
        {"name": "c", "steps": 7},
    ]
    config = load_config(write(least(data / "words", {}, phases=phases)))
    totals = Dataset(data / "words").manifest.totals
    words = totals.words / (totals.tokens + 2 * totals.documents) * 128 * 2
    assert [phase.steps for phase in config.phases] == [5, math.ceil(math.ceil(1000 / (words / 2)) / 2), 7]
    save_config(config, tmp_path / "saved.yaml")
    (tmp_path / "saved.yaml").write_text((tmp_path / "saved.yaml").read_text().replace(str(data), "/gone"))
    assert load_config(tmp_path / "saved.yaml").train.steps == config.train.steps  # needs no data set


def test_lengths_that_cannot_be(write, data):
    old, new = data / "old", data / "words"
    assert "does not say how many words it has" in refusal(write(least(old, {"words": 10})))
    assert "of phase b are not known" in refusal(
        write(least(new, {}, phases=[{"name": "b", "bytes": 9, "data": {"train": str(old)}}]))
    )
    assert "train.words must be 1 or more, not 0." in refusal(write(least(new, {"words": 0})))
    assert "train.words must be a whole number, not '1M'. Write 1000000." in refusal(write(least(new, {"words": "1M"})))
    two = refusal(write(least(new, {"words": 10, "bytes": 10})))
    assert "train has a length in bytes and another length; remove one of them" in two
    mixed = refusal(write(least(new, {"words": 10}, phases=[{"name": "a", "steps": 3}])))
    assert "train has a length in words and another length" in mixed
    with pytest.raises(UserError, match="No data set at /gone"):
        load_config(write(least("/gone", {"words": 10})))
    unpacked = least(new, {"words": 10})
    unpacked["data"] |= {"packing": "none", "train": [{"path": str(new), "weight": 1}]}
    assert "a length in words is known for packed rows only" in refusal(write(unpacked))


def test_checkpoints_at_words_are_at_the_first_step_with_so_many(write, data):
    totals = Dataset(data / "words").manifest.totals
    of_row = totals.words / (totals.tokens + 2 * totals.documents) * 64
    phases = [{"name": "a", "steps": 10}, {"name": "b", "steps": 10, "train": {"global_batch_size": 2}}]
    wanted = [1, round(32 * of_row * 10), round(32 * of_row * 10) + 5, round(32 * of_row * 10 + 2 * of_row * 9), 10**9]
    values = least(data / "words", {}, phases=phases, checkpoint={"at_words": wanted})
    read = [0.0]
    for step in range(20):
        read.append(read[-1] + (32 if step < 10 else 2) * of_row)
    steps = {next((step for step, words in enumerate(read) if words >= count), None) for count in wanted}
    assert load_config(write(values)).checkpoint.at_steps == sorted(step for step in steps if step)
