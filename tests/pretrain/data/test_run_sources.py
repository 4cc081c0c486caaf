"""Data sets of a run: opened, named and weighted, local and remote."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.common.errors import DamagedData, UserError
from data_prep.format import Dataset
from pretrain.checkpoint import Identity
from pretrain.config import Config
from pretrain.data import Batch, BatchStage, Loader, Sources, mixture_line
from tests.support.batches import first_batches
from tests.support.datasets import make_dataset
from tests.support.runs import VOCAB_SIZE, tiny_config
from tests.support.web import serving
from tests.support.wordpiece_set import SHIP, wordpiece_set


def check(config: Config) -> None:
    Sources.open(config).check(config)


def config_of(data: Path, **overrides: Any) -> Config:
    return Config.model_validate(tiny_config(data, data / "run", **overrides))


def held_out(config: Config) -> Loader:
    dataset = Sources.open(config).open_held_out(config.data)
    return Loader.for_held_out(config, dataset, BatchStage.of_run(config, 1), rank=0)


def same(a: list[Batch], b: list[Batch]) -> bool:
    names = ("tokens", "labels", "masked_positions", "cu_seqlens")
    return all(np.array_equal(getattr(x, n), getattr(y, n)) for x, y in zip(a, b, strict=True) for n in names)


def test_names_and_weights(data, tmp_path):
    short = make_dataset(tmp_path / "web" / "train", [range(5, 60)] * 10, VOCAB_SIZE)
    paths = [str(data / "train"), str(short.path), str(data / "valid")]
    weighted = [{"path": path, "weight": 2} for path in paths]
    sources = Sources.open(config_of(data, data__train=weighted))
    assert sources.names == (data.name, "web", "valid")
    assert sources.weights == ((2, 2, 2),)
    epochs = [{"path": paths[0], "epochs": 1}, {"path": paths[1], "epochs": 4}]
    totals = Dataset(data / "train").manifest.totals
    slots = totals.tokens + 2 * totals.documents
    assert Sources.open(config_of(data, data__train=epochs)).weights == ((slots, 4 * 57 * 10),)
    assert Sources.open(config_of(data, data__train=paths[:2])).weights == ((slots, 57 * 10),)
    twice = [{"path": paths[0], "weight": 1}] * 2
    assert Sources.open(config_of(data, data__train=twice)).names == (f"{data.name}-0", f"{data.name}-1")


def test_a_temperature_flattens_the_shares_in_each_phase(tmp_path):
    """Shares are size^(1/T), as exact quotas of rows; T = 1 is the default, and a phase may have another T or none."""
    sizes = {"large": 8000, "middle": 400, "small": 10}  # slots: each document has 8 tokens and 2 specials
    train = [str(make_dataset(tmp_path / name, [[5] * 8] * (n // 10), VOCAB_SIZE).path) for name, n in sizes.items()]
    weighted = [{"path": path, "weight": weight} for path, weight in zip(train, (1, 1, 2), strict=True)]
    of_phases = [{}, {"temperature": 2}, {"temperature": 10 / 3}, {"train": weighted, "temperature": None}]
    phases = [{"name": f"p{n}", "steps": 2, "data": data} for n, data in enumerate(of_phases)]
    settings = {"data__train": train, "data__valid": None, "data__temperature": 1, "train__steps": 8}
    config = config_of(tmp_path, **settings, phases=phases)
    plain = config_of(tmp_path, data__train=train, data__valid=None)
    sources = Sources.open(config)
    assert sources.shares() == Sources.open(plain).shares()
    for phase, exponent in enumerate((1, 0.5, 0.3)):
        powers = np.array([size**exponent for size in sizes.values()])
        shares = sources.mixture_of(phase)
        np.testing.assert_allclose([*shares.values()], powers / powers.sum(), atol=1 / 4096)
        assert list(shares) == [*sizes]
        assert sum(shares.values()) == 1
    assert mixture_line("p3", sources.mixture_of(3)) == "Rows of phase p3: large 25.0%, middle 25.0%, small 50.0%"
    loader = Loader.for_training(config, sources, BatchStage.of_run(config, 1), rank=0)
    counts = loader.mixture.count_rows(0, 4096, 2)
    assert (counts / 4096).tolist() == [*sources.mixture_of(2).values()]
    others = [phases[0], phases[1] | {"data": {"temperature": 4}}, *phases[2:]]
    now = config_of(tmp_path, **settings, phases=others)
    for steps, changed in ((2, {}), (3, {"phases.p1.data.temperature": "phases.p1.data.temperature was 2 and is 4"})):
        assert Identity.of(config, sources, steps).changes(Identity.of(now, Sources.open(now), steps)) == changed


def test_epochs_are_what_they_say(data, tmp_path):
    """Sources of other document lengths, read as often as each other: they end together."""
    long = make_dataset(tmp_path / "long", [[5] * 400] * 200, VOCAB_SIZE, block_tokens=2000)
    short = make_dataset(tmp_path / "short", [[6] * 8] * 10_000, VOCAB_SIZE, block_tokens=2000)
    config = config_of(data, data__train=[str(long.path), str(short.path)], data__window_blocks=1)
    loader = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), rank=0)
    mixture, position = loader.mixture, loader.mixture.start()
    while position.sources[0].epoch == 0:
        _, position = mixture.take(position, 64, 32)
    read = [stream.progress(place) for stream, place in zip(mixture.streams, position.sources, strict=True)]
    assert read[1] == pytest.approx(1, abs=0.07)


def test_an_empty_data_set_is_refused_by_name(data, tmp_path):
    empty = make_dataset(tmp_path / "empty", [], VOCAB_SIZE)
    for changes in ({"data__train": str(empty.path)}, {"data__valid": str(empty.path)}):
        with pytest.raises(UserError, match=f"{empty.path} holds no document"):
            check(config_of(data, **changes))


def test_another_tokenizer_is_refused(data, tmp_path):
    other = wordpiece_set(tmp_path / "other", [[SHIP]], [])
    both = [{"path": str(data / "train"), "weight": 1}, {"path": str(other.path), "weight": 1}]
    with pytest.raises(UserError, match="was made with another tokenizer than"):
        Sources.open(config_of(data, data__train=both))
    config = config_of(data, data__valid=str(other.path))
    with pytest.raises(UserError, match="was made with another tokenizer than"):
        Sources.open(config).open_held_out(config.data)


def test_a_url_gives_the_batches_of_the_folder(data, tmp_path):
    shutil.copytree(data / "train", tmp_path / "served" / "train")
    cache = {"data__cache_dir": str(tmp_path / "cache"), "data__cache_gb": 0.1}
    with serving(tmp_path / "served") as web:
        remote = config_of(data, data__train=f"{web.url}/train", **cache)
        check(remote)
        assert same(first_batches(remote), first_batches(config_of(data)))
        asked = len(web.gets)
        assert same(first_batches(remote), first_batches(config_of(data)))
        assert len(web.gets) - asked <= 1, "all but the manifest is in the cache"
        small = {"data__cache_dir": str(tmp_path / "small"), "data__cache_gb": 1e-6}
        with pytest.raises(UserError, match="may hold 1000; raise its limit"):
            first_batches(config_of(data, data__train=f"{web.url}/train", **small))


def test_damage_of_the_held_out_set_is_an_error(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    (shard,) = (tmp_path / "data/valid/shards").glob("*.tar")
    shard.write_bytes(bytes(shard.stat().st_size))
    config = config_of(tmp_path / "data", data__damage_budget=10**9)
    with pytest.raises(DamagedData, match=f"{shard} is damaged"):
        next(held_out(config).held_out(0, 5))


def test_held_out_rows_and_masks_are_the_same_for_every_seed(data):
    one, other = (list(held_out(config_of(data, run__seed=seed)).held_out(0, 20)) for seed in (1, 2))
    assert same(one, other)


def test_an_evaluation_prepares_no_window_beyond_its_rows(data):
    loader = held_out(config_of(data))
    for _ in loader.held_out(0, 10**6):
        assert loader.mixture.streams[0].ahead is None


def test_missing_files_are_found_before_training(data, tmp_path, capsys):
    shutil.copytree(data, tmp_path / "data")
    (shard,) = (tmp_path / "data/train/shards").glob("*.tar")
    shard.unlink()
    config = config_of(tmp_path / "data")
    with pytest.raises(DamagedData, match="is missing"):
        check(config)
    lenient = config_of(tmp_path / "data", data__damage_budget=1000)
    check(lenient)
    assert capsys.readouterr().err == "", "the run itself says it"
    Sources.open(lenient).check_files(lenient.data)
    assert f"warning: {shard} is missing" in capsys.readouterr().err
    shard.with_suffix(".index").unlink()
    with pytest.raises(DamagedData, match=r"index is missing"):
        check(lenient)


def test_whole_words_need_what_tells_where_they_begin(tmp_path):
    data = str(make_dataset(tmp_path / "bare", [[5, 6]], VOCAB_SIZE).path)
    with pytest.raises(UserError, match="has no tokenizer files, which show where words begin"):
        first_batches(config_of(tmp_path, data__train=data, masking={"strategy": "whole_word"}))


def test_one_special_token_for_two_roles(tmp_path):
    """RoBERTa counts positions by tokens that are not padding; padding that begins texts hides them all."""
    for name, roles in {"a": {"pad": 3}, "b": {"pad": 1}, "c": {"pad": 2}, "d": {"mask": 3}}.items():
        make_dataset(tmp_path / name, [range(5, 60)] * 10, VOCAB_SIZE, special_ids=roles)
    for name, others in {"a": "pad and sep", "b": "pad and unk"}.items():
        check(config_of(tmp_path, data__train=str(tmp_path / name), data__valid=None))
        with pytest.raises(UserError, match=rf"id \d, is the {others} token of the tokenizer\. Choose arch: bert"):
            check(config_of(tmp_path, data__train=str(tmp_path / name), data__valid=None, model__arch="roberta"))
    for name, others in {"c": "its pad and its cls", "d": "its mask and its sep"}.items():
        with pytest.raises(UserError, match=rf"one token, id \d, as {others} token"):
            check(config_of(tmp_path, data__train=str(tmp_path / name), data__valid=None))
