"""Cloze repair: masked and predicted tokens, required data, and an unbiased choice among targets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.common.errors import UserError
from pretrain.config import Config, MaskingConfig
from pretrain.data import BatchStage, Loader, Sources
from pretrain.masking import IGNORED, Rows, TokenFlag, Vocabulary
from pretrain.objectives.repair import RepairObjective
from tests.support.configs import least_config
from tests.support.datasets import make_dataset

VOCABULARY = Vocabulary(size=50, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))


def rows_of(n_rows: int, seq_len: int, share: float, seed: int = 0) -> Rows:
    """Rows of ordinary ids and [UNK], a share of them targets; other bits of flags are set at random."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice([1, *range(5, 50)], size=(n_rows, seq_len))
    flags = (rng.random(tokens.shape) < share) * TokenFlag.TARGET
    flags |= (rng.random(tokens.shape) < 0.5) * TokenFlag.WORD_START
    tokens[:, 0], tokens[:, -2], tokens[:, -1] = 2, 3, 0
    flags[:, [0, -2, -1]] = 0
    places = np.zeros((n_rows, 3), dtype=np.int64)
    places[:, 2] = np.arange(n_rows)
    return Rows(tokens, places, flags.astype(np.uint8))


@given(
    n_rows=st.integers(1, 6),
    seq_len=st.integers(10, 70),
    rate=st.sampled_from([0.05, 0.15, 0.5, 0.9]),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_targets_are_masked_and_nothing_else_is(n_rows, seq_len, rate, share, seed):
    rows = rows_of(n_rows, seq_len, share, seed)
    repair = RepairObjective(MaskingConfig(rate=rate), VOCABULARY, seed, "train")
    slots = max(1, round(rate * (seq_len - 2)))
    assert abs(repair.slots(seq_len) - slots) <= (rate * (seq_len - 2) % 1 == 0.5)
    found = repair(rows, rate)
    targets, flat = (rows.flags & TokenFlag.TARGET != 0).reshape(-1), rows.tokens.reshape(-1)
    assert (found.tokens == np.where(targets, VOCABULARY.mask, flat)).all()
    labels = found.labels.reshape(n_rows, repair.slots(seq_len))
    places = found.positions.reshape(labels.shape)
    used = labels != IGNORED
    wanted = (targets & (flat != 1)).reshape(n_rows, seq_len).sum(axis=1)
    assert used.sum(axis=1).tolist() == np.minimum(wanted, repair.slots(seq_len)).tolist()
    assert (np.diff(used.astype(int), axis=1) <= 0).all(), "unused places come last"
    assert (places // seq_len == np.arange(n_rows)[:, None]).all()
    assert targets[places[used]].all()
    assert (labels[used] == flat[places[used]]).all()
    assert len(set(places[used].tolist())) == used.sum(), "a place was chosen twice"
    assert (np.diff(places, axis=1)[used[:, 1:]] > 0).all()


def test_a_lower_rate_leaves_places_unused():
    rows = rows_of(4, 64, 1.0)
    found = RepairObjective(MaskingConfig(rate=0.5), VOCABULARY, 1, "train")(rows, 0.25)
    labels = found.labels.reshape(4, -1)
    assert labels.shape[1] == 31
    assert ((labels != IGNORED).sum(axis=1) == 16).all()


# From a configuration and data sets


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 200, size=n) for n in rng.integers(3, 90, size=120)]
    targets = [document % 7 == 0 for document in documents]
    words = [rng.random(len(document)) < 0.6 for document in documents]
    make_dataset(tmp_path / "pairs", documents, 200, 2000, word_starts=words, targets=targets)
    make_dataset(tmp_path / "text", documents, 200, 2000)
    return tmp_path


def check(config: Config) -> None:
    Sources.open(config).check(config)


def config_of(folder: Path, train: str = "pairs", valid: str = "pairs") -> Config:
    data = {"train": str(folder / train), "valid": str(folder / valid), "seq_len": 32}
    return least_config(data=data, objective="repair", train={"steps": 5, "global_batch_size": 16})


def test_data_without_targets_is_refused(data):
    config = config_of(data, train="text")
    with pytest.raises(UserError, match=r"text has no targets.*--wrong-field"):
        Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), 0)
    for wrong in (config, config_of(data, valid="text")):
        with pytest.raises(UserError, match=r"text has no targets.*--wrong-field"):
            check(wrong)


def test_each_phase_is_checked_on_the_data_that_it_reads(data):
    """The text needs no targets where only another phase predicts them. Held-out data are for all phases."""
    text, pairs = (str(data / name) for name in ("text", "pairs"))

    def of_phases(*read: str, **more) -> Config:
        first, second = ({"data": {"train": path}, "steps": 5} for path in read)
        phases = [{"name": "a"} | first, {"name": "b", "objective": "repair"} | second]
        train = {"global_batch_size": 16}
        return least_config(data={"train": first["data"]["train"], "seq_len": 32} | more, train=train, phases=phases)

    config = of_phases(text, pairs)
    check(config)
    loader = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), 0)
    first = loader.step(0, loader.mixture.start())
    second = loader.step(5, first.after)
    loader.close()
    assert any((batch.labels[batch.labels != IGNORED] % 7 != 0).any() for batch in first.batches)
    repair = config_of(data)
    held_out = Loader.for_held_out(repair, Sources.open(repair).datasets[0], BatchStage.of_run(repair, 1), 0)
    for batch in [*second.batches, *held_out.held_out(1, 64)]:
        labels = batch.labels[batch.labels != IGNORED]
        assert 0 < len(labels) <= (batch.tokens == 4).sum()
        assert (labels % 7 == 0).all(), "the id of a token shows that it is a target"
    held_out.close()
    check(of_phases(text, pairs, valid=pairs))
    for wrong in (of_phases(pairs, text), of_phases(text, pairs, valid=text)):
        with pytest.raises(UserError, match=r"text has no targets.*--wrong-field"):
            check(wrong)
