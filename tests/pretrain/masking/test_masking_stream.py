"""Masks of batches from a data set: flags stay with their tokens, and masks follow only from the position."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from data_prep.format import Dataset
from data_prep.tokenizer import describe_tokenizer
from pretrain.config import Config
from pretrain.data import Batch, BatchStage, Loader, MixturePosition, Sources
from pretrain.data.batch import lay_out
from pretrain.data.packing import Mode
from pretrain.data.stream import Position, RowStream
from pretrain.data.window import BlockReader
from pretrain.masking import IGNORED, TokenFlag, Vocabulary
from pretrain.model import Encoder, EncoderShape, Prediction
from tests.support.datasets import make_dataset
from tests.support.drawn_rows import STRATEGIES
from tests.support.masks import token_masking
from tests.support.memory_blocks import MemoryBlocks, memory_loader, one_stage
from tests.support.runs import VOCAB_SIZE, tiny_config
from tests.support.wordpiece_set import wordpiece_set

VOCABULARY = Vocabulary(size=60_000, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
LENGTHS = np.random.default_rng(1).integers(1, 90, size=(11, 4)).tolist()


def numbered() -> MemoryBlocks:
    """Blocks whose tokens all have different ids."""
    blocks, first = MemoryBlocks(LENGTHS), 5
    for tokens in blocks.ids:
        tokens[:] = np.arange(first, first + len(tokens))
        first += len(tokens)
    return blocks


BLOCKS = numbered()
ALL_IN_ONE = (1, 1, 12)
TOKENS = sum(map(sum, LENGTHS))
STARTS = np.random.default_rng(2).random(TOKENS + 5) < 0.6  # of each token of the set, by its id
STARTS[:5] = False


def stored_flags(tokens: np.ndarray, block: int) -> np.ndarray:
    """ReadFlags by place, regardless of the tokens: the flags of the block's tokens, in its order."""
    assert len(tokens) == len(BLOCKS.tokens(block))
    return STARTS[BLOCKS.tokens(block)] * np.uint8(TokenFlag.WORD_START)


def loader(strategy: str, shape: tuple[int, int, int] = ALL_IN_ONE, rank: int = 0) -> Loader:
    mask = token_masking(VOCABULARY, 0.3, seed=5, **STRATEGIES[strategy])
    return memory_loader([BLOCKS], VOCABULARY, mask, one_stage(32, *shape), rank, rate=0.3, flags=stored_flags)


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
@pytest.mark.parametrize("reordered", [False, True])
def test_each_token_keeps_its_mark_through_packing_and_reordering(packing: Mode, reordered: bool):
    """Through rows of another length in the middle of a window, too; every token of two epochs, each mark its own."""
    flags = np.random.default_rng(4).integers(0, 256, TOKENS + 5).astype(np.uint8)

    def mark(tokens: np.ndarray, block: int) -> np.ndarray:
        return flags[BLOCKS.tokens(block)]  # by place, as word starts are stored

    def turned(tokens: np.ndarray, lengths: np.ndarray, block: int) -> np.ndarray:
        return np.random.default_rng(block).permutation(len(tokens))

    reader = BlockReader(BLOCKS, None, turned if reordered else None, mark)
    stream, position, seq_len = RowStream(reader, 5, 3, packing), Position(), 16
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_micro_batches_and_resumes_change_no_mask(strategy):
    """The global batches of one process, from the start, equal the batches of any other split or start."""
    one = loader(strategy)
    position = one.mixture.start()
    saved, wanted = [], []
    for steps_done in range(9):
        step = one.step(steps_done, position)
        saved.append(json.dumps(position.to_json()))
        wanted.append(step.batches[0])
        position = step.after
    assert position.sources[0].epoch >= 1
    for world_size, accumulation, start in ((2, 1, 0), (3, 2, 3), (4, 3, 7), (1, 12, 5)):
        shape = (world_size, accumulation, 12 // world_size // accumulation)
        ranks = [loader(strategy, shape, rank) for rank in range(world_size)]
        at = MixturePosition.from_json(json.loads(saved[start]))
        for steps_done in range(start, 9):
            steps = [rank.step(steps_done, at) for rank in ranks]
            batches = [batch for step in steps for batch in step.batches]
            for name in ("tokens", "labels"):
                found = np.concatenate([getattr(batch, name) for batch in batches])
                np.testing.assert_array_equal(found, getattr(wanted[steps_done], name))
            hits = np.concatenate([predicted(batch) for batch in batches])
            np.testing.assert_array_equal(hits, predicted(wanted[steps_done]))
            at = steps[0].after


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


def first_batches(config: Config, steps: int) -> list[Batch]:
    one = Loader.for_training(config, Sources.open(config), BatchStage.of_run(config, 1), rank=0)
    found, position = [], one.mixture.start()
    for steps_done in range(steps):
        step = one.step(steps_done, position)
        found += step.batches
        position = step.after
    return found


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
        {"strategy": "ngram"},
        {"strategy": {"token": 1, "span": 1}},
        {"strategy": {"token": 1, "span": 9}},
        {"rate": 0.3},
        {"rate": {"schedule": "linear", "start": 0.3, "end": 0.15}},
        {"replacement": {"mask": 0.5}},
        {"replacement": {"random": 0.2}},
        {"strategy": "span", "replacement": {"per": "word"}},
        {"strategy": "span", "replacement": {"per": "token"}},
        {"strategy": "span", "span": {"p": 0.5}},
        {"strategy": "span", "span": {"max_words": 4}},
        {"strategy": "ngram", "ngram": 2},
    ],
    ids=str,
)
def test_every_setting_of_masking_is_read(dataset, tmp_path, settings):
    """A key that nothing reads would change nothing."""
    base = {"strategy": settings["strategy"]} if len(settings) > 1 else {}
    one, other = (first_batches(config_of(dataset, tmp_path, **of), 16) for of in (base, settings))
    assert [contents(batch) for batch in one] != [contents(batch) for batch in other]
    assert [contents(b) for b in other] == [
        contents(b) for b in first_batches(config_of(dataset, tmp_path, **settings), 16)
    ]


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


def test_token_zero_counts_and_nothing_to_predict_costs_nothing():
    """From the batch to the loss: labels of 0 are predictions; a batch without any has a loss of 0, not NaN."""
    vocabulary = Vocabulary(size=20, pad=19, cls=18, sep=17, mask=16, special_ids=frozenset({16, 17, 18, 19}))
    mask = token_masking(vocabulary, 0.3)
    encoder = Encoder(EncoderShape(20, layers=1, hidden=8, heads=1, intermediate=8, max_positions=16, pad_id=19))
    encoder.initialize(0)

    def loss_of(blocks: MemoryBlocks) -> tuple[Batch, Prediction]:
        parts, _ = RowStream(BlockReader(blocks), 5, 1, "none").take(Position(), 2, 16)
        batch = lay_out(parts, 2, 16, vocabulary).masked(mask, 0.3)
        arrays = (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
        inputs = [torch.from_numpy(array) for array in arrays]
        return batch, encoder(*inputs, seq_len=16)

    batch, found = loss_of(MemoryBlocks([[14, 14]], first_id=0, vocab_size=1))
    assert int((batch.labels >= 0).sum()) == found.predictions.item() == 8
    assert found.loss.item() > 1
    batch, found = loss_of(MemoryBlocks([[1, 1]], vocab_size=16))
    assert int((batch.labels >= 0).sum()) == found.predictions.item() == found.loss.item() == 0
    found.loss.backward()
    assert all(parameter.grad is None or (parameter.grad == 0).all() for parameter in encoder.parameters())
