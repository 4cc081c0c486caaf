"""Mixed sources of one data set: shares, epochs, phases, and what a run records of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.common.errors import UserError
from data_prep.common.reading import typed
from data_prep.format import Dataset, Manifest, ShardWriter, SourceInfo
from pretrain.checkpoint import Checkpoint, Identity
from pretrain.config import Config
from pretrain.data import BatchStage, Loader, MixturePosition, Sources
from pretrain.data.quotas import Quotas
from pretrain.data.source_order import SourceOrder, sources_of
from pretrain.resuming import ResumeState, checkpoint_state, start_state
from tests.support.datasets import tokenizer_info
from tests.support.runs import VOCAB_SIZE, config_file, metric, succeed, tiny_config

SIZES = {"en": 90, "de": 9, "eu": 2}  # documents of 8 tokens, one a block


def order_of(blocks: dict[str, int], *shares: list[float], window: int = 16) -> SourceOrder:
    ends = np.cumsum([*blocks.values()])
    places = [np.arange(end - count, end) for end, count in zip(ends, blocks.values(), strict=True)]
    quotas = tuple(Quotas.of(of_phase, window, several=True) for of_phase in shares)
    return SourceOrder(tuple(blocks), tuple(places), np.ones(len(blocks)), quotas)


def named_set(folder: Path, sizes: dict[str, int], tokens: int = 8) -> Dataset:
    """A data set of one task for each source, of documents with `tokens` tokens; those of source n have id 5 + n."""
    (folder / "shards").mkdir(parents=True)
    info, shards, sources = tokenizer_info(VOCAB_SIZE), [], []
    for task, (name, documents) in enumerate(sizes.items()):
        with ShardWriter(folder / "shards", task, info.dtype, block_tokens=tokens) as writer:
            writer.add(np.full(tokens * documents, 5 + task), np.full(documents, tokens))
        shards += writer.shards
        sources.append(SourceInfo(f"{name}.txt", name, 1, "0" * 64, task, 1, documents, tokens * documents, 1, {}))
    Manifest.write(folder, info, shards, sources)
    return Dataset(folder)


def config_of(folder: Path, train: object, **overrides: Any) -> Config:
    small = {"data__valid": None, "data__seq_len": 16, "data__window_blocks": 16}
    return Config.model_validate(tiny_config(folder, folder / "run", data__train=train, **small, **overrides))


def test_each_source_has_its_share_in_every_stretch_and_each_block_once_an_epoch():
    shares = [[0.6, 0.3, 0.0995, 0.0005], [0.1, 0.1, 0.3, 0.5]]
    order = order_of({"a": 50, "b": 7, "c": 1, "d": 3}, *shares)
    turns, times, counts = ((1, 100),), np.zeros(61, int), np.zeros(4)
    for window in range(200):
        ids = order.window(turns, window, seed=3, start="here")
        assert len(ids) == 16
        times += np.bincount(ids, minlength=61)
        counts += np.bincount(np.searchsorted([50, 57, 58], ids, side="right"), minlength=4)
        wanted = 16 * (np.array(shares[0]) * min(window + 1, 100) + np.array(shares[1]) * max(0, window + 1 - 100))
        assert np.abs(counts - wanted).max() < 4
    for blocks in order.blocks:
        assert np.ptp(times[blocks]) <= 1, "all blocks of a source are read equally often"
    first, second = (order.window((), window, 3, "here") for window in (0, 1))
    assert len({*first.tolist()} & {*range(50)} & {*second.tolist()}) == 0
    assert (order.window((), 0, 4, "here") != first).any()
    assert (order.window((), 0, 3, "there") != first).any()


def test_quotas_are_those_of_rounding_one_item_at_a_time():
    rng = np.random.default_rng(0)
    for number in range(200):
        weights = rng.pareto(rng.uniform(0.1, 3), int(rng.integers(1, 257))) * (rng.random() > 0.1)
        weights = np.round(weights) if number % 3 else weights
        if not weights.any():
            continue
        shares = weights / sum(weights) * 300
        rows = np.maximum(np.floor(shares).astype(int), shares > 0)
        while (left := 300 - rows.sum()) != 0:
            error = rows - shares
            wrong, allowed = (-error, shares > 0) if left > 0 else (error, rows > 1)
            rows[np.argmax(np.where(allowed, wrong, -np.inf))] += np.sign(left)
        assert Quotas.of(weights, 300).rows.tolist() == rows.tolist()
    assert Quotas.of(rng.pareto(0.3, 100_000), 4096).rows.sum() == 4096 * 4096


def test_a_phase_has_its_shares_from_the_next_window_on():
    order = order_of({"a": 50, "b": 7}, [3, 1], [3, 1], [1, 3])
    assert order.turned((), 1, 5) == ()
    assert order.turned((), 2, 5) == ((2, 5),)
    assert order.turned(((2, 5),), 2, 9) == ((2, 5),)
    with pytest.raises(UserError, match="not one of these data"):
        order.turned(((7, 5),), 0, 9)


def test_temperature_and_weights_decide_the_shares_of_sources(tmp_path):
    dataset = named_set(tmp_path / "train", SIZES)
    assert {name: len(blocks) for name, (blocks, _) in sources_of(dataset).items()} == {"de": 9, "en": 90, "eu": 2}
    path = str(dataset.path)
    phases = [{"name": "one", "steps": 30}, {"name": "two", "steps": 30, "data": {"temperature": 1e6}}]
    steps = {"train__steps": 60, "train__global_batch_size": 8}
    config = config_of(tmp_path, train=path, data__temperature=2, phases=phases, **steps)
    sources = Sources.open(config)
    powers = {name: size**0.5 for name, size in SIZES.items()}
    (first,) = sources.mixed().values()
    assert first.shares(0) == pytest.approx({n: p / sum(powers.values()) for n, p in powers.items()}, rel=0.01)
    (second,) = sources.of_phase(1).mixed().values()
    assert str(second).startswith("tokens of 3 sources: ")
    assert str(second).count("33.3%") == 3
    loader = Loader.for_training(config, sources, BatchStage.of_run(config, 1), rank=0)
    position, seen = loader.mixture.start(), np.zeros((2, 3))
    for done in range(60):
        step = loader.step(done, position)
        tokens = np.where(step.batches[0].tokens >= 5, step.batches[0].tokens - 5, 3)
        seen[done // 30] += np.bincount(tokens, minlength=4)[:3]
        position = step.after
    assert len(position.sources[0].turns) == 1
    read = position.sources[0].window * config.data.window_blocks / dataset.n_blocks
    assert loader.mixture.streams[0].progress(position.sources[0]) == pytest.approx(read)
    assert seen[0].argmax() == 0
    named = [{"path": path, "sources": {"en": 0, "de": 1, "eu": 1}}]
    weighted = Sources.open(config_of(tmp_path, train=named))
    (named_weights,) = weighted.mixed().values()
    assert named_weights.shares() == pytest.approx({"de": 0.5, "eu": 0.5, "en": 0}, rel=0.01)
    for wrong, message in (({"en": 1, "de": 1}, "differ in 'eu'"), ({**SIZES, "fr": 1}, "differ in 'fr'")):
        with pytest.raises(UserError, match=message):
            Sources.open(config_of(tmp_path, train=[{"path": path, "sources": wrong}]))
    with pytest.raises(UserError, match="has no sources to mix"):
        Sources.open(config_of(tmp_path, train=str(named_set(tmp_path / "one", {"en": 3}).path), data__temperature=2))


def test_a_run_does_not_resume_with_other_sources(tmp_path):
    configs = []
    for number, sizes in enumerate((SIZES, SIZES, {"en": 9, "de": 90, "eu": 2}, {"english": 90, "de": 9, "eu": 2})):
        dataset = named_set(tmp_path / str(number) / "train", sizes)
        configs.append(config_of(tmp_path, train=str(dataset.path), data__temperature=2))
    first, *others = [Identity.of(config, Sources.open(config)) for config in configs]
    changed = ["data.train (sources)" in first.changes(other) for other in others]
    assert changed == [False, True, True]
    plain = config_of(tmp_path, train=configs[0].data.train[0].path)
    assert not any("sources" in name for name in Identity.of(plain, Sources.open(plain)).settings)


@pytest.mark.usefixtures("one_rank")
def test_a_run_that_may_resume_with_other_shares_goes_on_at_the_next_start(tmp_path):
    path = str(named_set(tmp_path / "train", SIZES).path)

    def configured(train: object, late: dict[str, object] | None, **settings: object) -> Config:
        phases = [{"name": "one", "steps": 30}, {"name": "two", "steps": 30, "data": late}]
        return config_of(tmp_path, train=train, phases=phases if late else [], train__steps=60, **settings)

    def weighted(en: int) -> object:
        return [{"path": path, "sources": {"en": en, "de": 1, "eu": 1}}]

    plain, before = configured(path, None), configured(weighted(1), {"train": weighted(2)})
    position = typed(MixturePosition, {"dealt": 320, "sources": [{"epoch": 0, "window": 20, "row": 3}]})
    next_start = typed(MixturePosition, {"dealt": 320, "sources": [{"epoch": 1}]})
    state = checkpoint_state(before, Sources.open(before), ResumeState(40, position))
    saved = Checkpoint(tmp_path, 40, json.loads(json.dumps(state)), {})
    assert start_state(saved, before, Sources.open(before)).position == position
    changed = configured(weighted(5), {"train": weighted(2)}), configured(weighted(1), {"seq_len": 16})
    by_size = configured(path, {"temperature": 4}, data__temperature=2)
    for now in (plain, *changed, by_size):
        sources = Sources.open(now)
        assert start_state(saved, now, sources).position == next_start
        loader = Loader.for_training(now, sources, BatchStage.of_run(now, 1), rank=0)
        assert len(loader.step(40, next_start).batches) == 1
        loader.close()


def test_held_out_rows_of_a_source_hold_nothing_else(tmp_path):
    dataset = named_set(tmp_path / "valid", SIZES)
    config = config_of(tmp_path, train=str(dataset.path))
    for number, (name, documents) in enumerate(SIZES.items()):
        loader = Loader.for_held_out(config, dataset, BatchStage.of_run(config, 1), 0, source=name)
        tokens = np.concatenate([batch.labels for batch in loader.held_out(1, 10**6)])
        assert {*tokens[tokens >= 0].tolist()} == {5 + number}
        assert len(tokens[tokens >= 0]) <= 8 * documents


def test_a_source_without_predictions_has_no_loss_in_a_run(tmp_path):
    """Its only document has one token, which is not drawn: a loss of 0 would say that it is predicted perfectly."""
    named_set(tmp_path / "train", SIZES)
    named_set(tmp_path / "valid", {"en": 40, "eu": 1}, tokens=1)
    phases = [{"name": "one", "steps": 4}, {"name": "two", "steps": 4, "data": {"temperature": 9}}]
    small = {"data__temperature": 2, "data__window_blocks": 16, "phases": phases, "train__steps": 8}
    config = config_file(tmp_path, tmp_path / "run", eval__by_source=True, eval__every_steps=4, **small)
    done = succeed("train", config)
    assert [*metric(tmp_path / "run", "eval/source_loss/en")] == [4, 8]
    assert not metric(tmp_path / "run", "eval/source_loss/eu")
    assert (done.stdout + done.stderr).count("has no loss of eu: nothing to predict there") == 1
    assert "in phase two: tokens of 3 sources" in done.stdout + done.stderr


def test_a_position_of_an_earlier_version_has_no_turns():
    stored = {"dealt": 3, "sources": [{"epoch": 1, "window": 2, "row": 3, "past": [[8, 2]]}]}
    position = typed(MixturePosition, stored)
    assert position.sources[0].turns == ()
    assert typed(MixturePosition, json.loads(json.dumps(asdict(position)))) == position
    assert replace(position.sources[0], turns=((1, 2),)) != position.sources[0]
