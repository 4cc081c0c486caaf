"""Masks of batches from a data set: flags stay with their tokens, and masks follow only from the position."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from data_prep.format import Dataset
from data_prep.tokenizer import describe_tokenizer
from pretrain.config import Config
from pretrain.data import Batch, BatchStage, Loader
from pretrain.data.batch import lay_out
from pretrain.data.packing import Mode
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, Vocabulary
from tests.support.batches import first_batches
from tests.support.datasets import make_dataset
from tests.support.memory_blocks import numbered
from tests.support.runs import VOCAB_SIZE, tiny_config
from tests.support.wordpiece_set import wordpiece_set

VOCABULARY = Vocabulary(size=60_000, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
LENGTHS = np.random.default_rng(1).integers(1, 90, size=(11, 4)).tolist()
BLOCKS = numbered(LENGTHS)
TOKENS = sum(map(sum, LENGTHS))


def originals(batch: Batch) -> np.ndarray:
    """Tokens before masking [R, S]."""
    tokens, used = batch.tokens.copy(), batch.labels != IGNORED
    tokens[batch.masked_positions[used]] = batch.labels[used]
    return tokens.reshape(-1, batch.seq_len)


def predicted(batch: Batch) -> np.ndarray:
    """Places of predicted tokens: bool [R, S]."""
    hit = np.zeros(len(batch.tokens), dtype=bool)
    hit[batch.masked_positions[batch.labels != IGNORED]] = True
    return hit.reshape(-1, batch.seq_len)


def contents(batch: Batch) -> tuple[list[int], ...]:
    return tuple(getattr(batch, name).tolist() for name in ("tokens", "labels", "masked_positions"))


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_each_token_keeps_its_mark_through_packing(packing: Mode):
    """Through rows of another length in the middle of a window, too; every token of two epochs, each mark its own."""
    flags = np.random.default_rng(4).integers(0, 256, TOKENS + 5).astype(np.uint8)

    def mark(tokens: np.ndarray, block: int) -> np.ndarray:
        return flags[BLOCKS.tokens(block)]  # by place, as word starts are stored

    stream, position, seq_len = RowStream(BlockReader(BLOCKS, flags=mark), 5, 3, packing), Position(), 16
    counts = np.zeros(TOKENS + 5, dtype=int)
    while position.epoch == 0:
        if position.window == 1 and position.row and seq_len == 16:
            position, seq_len = position.after_seq_len(16), 48
        parts, position = stream.take(position, 7, seq_len)
        rows = lay_out(parts, 9, seq_len, VOCABULARY).rows
        ordinary = rows.tokens >= 5
        assert (rows.flags[ordinary] == flags[rows.tokens[ordinary]]).all()
        assert (rows.flags[~ordinary] == 0).all()
        counts += np.bincount(rows.tokens[ordinary], minlength=TOKENS + 5)
    assert counts[5:].min() >= 1


@pytest.mark.parametrize("prefix", ["##", None])
def test_words_are_those_of_the_data_set(tmp_path: Path, prefix: str | None):
    """By the vocabulary, or by the bits stored for each token, whatever `##` its ids are spelt with."""
    rng = np.random.default_rng(0)
    # Ids 7 and 9 are ##s and ##ed; without a prefix odd ids begin words (tests/support/wordpiece_set.py).
    choices = [[5], [6], [6, 7], [8, 9], [6, 7, 9]] if prefix else [[5], [7], [5, 6], [9, 8], [7, 6, 8]]
    documents = [sum((choices[i] for i in rng.integers(0, 5, 9)), []) for _ in range(60)]  # noqa: RUF017
    dataset = wordpiece_set(tmp_path / "set", [documents], [], prefix)
    begins = np.isin(np.arange(11), (5, 6, 8) if prefix else (5, 7, 9))
    found = first_batches(config_of(dataset, tmp_path, strategy="whole_word", rate=0.4), steps=6)
    kinds = set()
    for batch in found:
        for tokens, hit in zip(originals(batch), predicted(batch), strict=True):
            for word in np.split(np.arange(32), np.flatnonzero(begins[tokens] | (tokens < 5))[1:]):
                if tokens[word[0]] >= 5 and tokens[word[0] - 1] >= 5:  # not what a row's end cut off
                    assert hit[word].all() or not hit[word].any()
                    kinds.add((len(word), bool(hit[word[0]])))
    assert kinds >= {(length, is_hit) for length in (1, 2) for is_hit in (True, False)}


def config_of(dataset: Dataset, folder: Path, **masking: Any) -> Config:
    settings = tiny_config(folder, folder / "run", data__train=str(dataset.path), train__global_batch_size=4)
    settings["data"].pop("valid")
    return Config.model_validate(settings | {"masking": masking})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    """One row for each of some documents, whose words have one to three tokens."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, VOCAB_SIZE, 30) for _ in range(16)]
    starts = [rng.random(30) < 0.6 for _ in documents]
    folder = tmp_path_factory.mktemp("words")
    return make_dataset(folder / "train", documents, VOCAB_SIZE, word_starts=starts)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "whole_word"},
        {"strategy": "span"},
        {"strategy": {"token": 1, "span": 1}},
        {"strategy": {"token": 1, "span": 9}},
        {"rate": 0.3},
        {"rate": {"schedule": "linear", "start": 0.3, "end": 0.15}},
        {"replacement": {"mask": 0.5}},
        {"replacement": {"random": 0.2}},
        {"strategy": "span", "replacement": {"per": "token"}},
        {"strategy": "span", "span": {"p": 0.5}},
        {"strategy": "span", "span": {"max_words": 4}},
    ],
    ids=str,
)
def test_every_setting_of_masking_is_read(dataset, tmp_path, settings):
    """A key that nothing reads would change nothing."""
    base = {"strategy": settings["strategy"]} if len(settings) > 1 else {}
    runs = (first_batches(config_of(dataset, tmp_path, **of), 16) for of in (base, settings, settings))
    one, other, again = ([contents(batch) for batch in batches] for batches in runs)
    assert one != other == again


def held_out(config: Config, dataset: Dataset) -> list[tuple[list[int], ...]]:
    batches = Loader.for_held_out(config, dataset, BatchStage.of_run(config, 1), 0).held_out(0, 16)
    return [contents(batch) for batch in batches]


def test_held_out_masks_are_those_of_the_last_rate_or_common_to_all_runs(dataset, tmp_path):
    """[MASK], random and kept tokens too: runs with other schedules compare, and with common masks all runs."""
    falling = config_of(dataset, tmp_path, rate={"schedule": "linear", "start": 0.4, "end": 0.15})
    plain = config_of(dataset, tmp_path, rate=0.15)
    spans = config_of(dataset, tmp_path, strategy="span", rate=0.3, replacement={"mask": 1.0, "random": 0.0})
    common = spans.model_copy(update={"eval": spans.eval.model_copy(update={"masks": "common"})})
    wanted = held_out(plain, dataset)
    assert held_out(falling, dataset) == held_out(common, dataset) == wanted != held_out(spans, dataset)


def test_added_special_tokens_are_special_and_id_zero_is_not(tmp_path):
    """Added tokens have ids above the base vocabulary; masking uses the description of the tokenizer."""
    base = ["ship", "sail", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(base)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([*base[2:], "<speaker>"])
    tokenizer.add_tokens(["added"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.of(describe_tokenizer(tmp_path))
    assert vocabulary.size == 9
    assert vocabulary.ordinary_ids.tolist() == [0, 1, 8]
    assert vocabulary.rank[[0, 1, 8]].tolist() == [0, 1, 2]
