"""Rows of 8,192 tokens: the results of transformers without a mask of the whole row; and attention by blocks."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForMaskedLM

from pretrain.data.batch import Batch
from pretrain.model import Encoder, EncoderShape
from pretrain.model.attention import DocumentBounds, attention, band_attention, band_mask
from pretrain.model.families import hugging_face_model
from tests.support.streams import stream
from tests.support.tensor_memory import TensorMemory

LONG = 8192
SIZES = {"vocab_size": 90, "layers": 5, "hidden": 16, "heads": 1, "intermediate": 24, "max_positions": LONG}
SHAPE = EncoderShape(arch="modernbert", pad_id=0, norm_eps=1e-5, window=64, init_std=0.3, **SIZES)


def encoder(shape: EncoderShape) -> Encoder:
    made = Encoder(shape)
    made.initialize(3)
    return made


def logits(model: Encoder, lengths: list[int]) -> torch.Tensor:
    batch = stream(lengths)
    with torch.no_grad():
        states = model.hidden(batch["tokens"], batch["positions"], batch["cu_seqlens"], LONG)
        return model.logits(states)[:, :90]


@pytest.mark.parametrize(
    ("theta", "others"),
    [
        (160_000.0, [{"window": 62}, {"rope_theta": 320_000.0}]),
        pytest.param(10_000.0, [{"window": 66}, {"local_rope_theta": 20_000.0}], marks=pytest.mark.slow),
    ],
)
def test_logits_at_8192_tokens_equal_transformers(theta, others, tmp_path):
    """After an export, with both kinds of layers; another window or rotary base changes the logits."""
    model = encoder(replace(SHAPE, rope_theta=theta))
    hugging_face_model(model.state_dict(), model.shape).save_pretrained(tmp_path)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path)
    config = theirs.config
    assert (config.max_position_embeddings, config.local_attention) == (LONG, 64)
    bases = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
    assert bases == {"full_attention": theta, "sliding_attention": 10_000.0}
    with torch.no_grad():
        wanted = theirs(input_ids=stream([LONG])["tokens"][None]).logits[0]
    found = logits(model, [LONG])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    for other in others:
        changed = encoder(replace(model.shape, **other))
        assert (logits(changed, [LONG]) - wanted).abs().max() > 0.1, other


@pytest.mark.parametrize(
    "lengths", [[LONG], pytest.param([5000, 3192], marks=pytest.mark.slow), [LONG - 300, 200, 100]]
)
def test_training_at_8192_tokens_makes_no_mask_of_a_row(lengths):
    model, batch = encoder(SHAPE), stream(lengths)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        with TensorMemory(model) as memory:
            prediction = model(**batch, seq_len=LONG)
            prediction.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(prediction.loss.item())
        assert memory.largest <= 2 * 64 * LONG  # the widest: the local layers' mask
    assert losses[1] < losses[0]


@pytest.mark.parametrize("reach", [1, 4, 9])
@pytest.mark.parametrize("lengths", [[40], [7, 1, 20, 12], [3, 60, 37]])
def test_blocks_see_what_a_whole_mask_lets_them_see(lengths, reach):
    """For any number of slots; results and gradients."""
    n, generator = sum(lengths), torch.Generator().manual_seed(reach)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(n)
    mask = (document == document[:, None]) & ((place - place[:, None]).abs() <= reach)
    q, k, v = (torch.randn(n, 2, 8, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3))
    by_head = [x.transpose(0, 1) for x in (q, k, v)]
    whole = F.scaled_dot_product_attention(*by_head, attn_mask=mask).transpose(0, 1)
    blocks = band_attention(q, k, v, band_mask(document, reach), reach, 0.0)
    torch.testing.assert_close(blocks, whole)
    weights = torch.randn(whole.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad((x * weights).sum(), (q, k, v)) for x in (blocks, whole)), strict=True):
        torch.testing.assert_close(one, other)


def test_blocks_are_taken_where_they_are_less_work():
    """128 slots and a reach of 8, so 32 keys a query: against a row of 128, and documents of 28 and 36 on average."""
    for lengths, banded in (([128], True), ([16] * 8, False), ([60, 60, 8], True), ([30] * 4 + [8], False)):
        bounds = torch.tensor([0, *lengths]).cumsum(0).int()
        documents = DocumentBounds.of(bounds, 128, 128, "sdpa", False, (None, 8))
        assert documents.banded == banded, lengths


@pytest.mark.parametrize(("seq_len", "banded"), [(128, 1), (32, 0)])
def test_a_compiled_graph_takes_blocks_by_the_length_of_a_row(seq_len, banded):
    """It must serve any documents, so it cannot count the pairs of those that it was compiled with."""

    @functools.partial(torch.compile, backend="eager", fullgraph=True)
    def ask(bounds: torch.Tensor) -> torch.Tensor:
        return bounds + DocumentBounds.of(bounds, 128, seq_len, "sdpa", False, (None, 8)).banded

    bounds = torch.arange(0, 129, 16, dtype=torch.int32)
    assert torch.equal(ask(bounds), bounds + banded)


def test_dropout_of_blocks_leaves_out_its_share():
    """Of weights: each value of the result is the mean of what is kept, over the share that is kept."""
    torch.manual_seed(0)
    bounds, ones = torch.tensor([0, 4096], dtype=torch.int32), torch.ones(4096, 1, 4)
    documents = DocumentBounds.of(bounds, 4096, 4096, "sdpa", False, (32,))
    out = attention(ones, ones, ones, documents, 32, dropout=0.25)
    assert documents.banded
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)
    assert out[:, 0, 0].std().item() == pytest.approx((0.25 / 0.75 / 65) ** 0.5, rel=0.1)


def test_flash_attention_plans_its_work_for_the_longest_document(monkeypatch):
    """It starts a program for each 128 slots of this length and each document."""
    asked = []

    def varlen(q, k, v, q_bounds, k_bounds, longest_q, longest_k, window_size):
        asked.append((longest_q, longest_k, window_size))
        return v

    monkeypatch.setattr("pretrain.model.attention._varlen", lambda: varlen)
    model = Encoder(replace(SHAPE, layers=3), backend="varlen")
    model.initialize(0)
    lengths = [100, 130, 26]
    ends = np.cumsum(lengths)
    none = np.zeros(0, np.int64)
    batch = Batch(LONG, none, none, np.array([0, *ends], np.int32), none, none, 0, 0)
    assert batch.longest == 256
    model(**stream(lengths), seq_len=256, longest=batch.longest - 128)
    model(**stream(lengths), seq_len=256)
    windows = (-1, -1), (32, 32), (32, 32)
    assert asked == [(longest, longest, window) for longest in (128, 256) for window in windows]
