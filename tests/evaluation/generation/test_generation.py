"""Text generation: given tokens stay, masks follow the plan, the same seed gives the same text."""

import functools
import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertLMHeadModel

from data_prep.common.errors import UserError
from evaluation.generation import GenerationRequest, Writer
from evaluation.generation.decoding import Draws, fill_masks, left_to_right
from pretrain.export import load_language_model
from tests.support.in_process import command, invoke, refused
from tests.support.tiny_models import tiny_model
from tests.support.wordpiece_set import WORDS, source, wordpiece_set

VOCABULARY, MASK, SPECIAL = 12, 4, [0, 1, 2, 3, 4]
run = functools.partial(invoke, "generate")
ALLOWED = torch.tensor([id not in SPECIAL for id in range(VOCABULARY)])
TABLE = torch.from_numpy(np.random.default_rng(0).normal(size=(VOCABULARY, 64, VOCABULARY)) * 2)


class Model:
    """Logits that depend on a place, on the ids next to it and on the sum of all; it records its inputs.

    Specials are the likeliest of all, to see that they are never drawn.
    """

    def __init__(self):
        self.asked: list[torch.Tensor] = []

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        self.asked.append(ids.clone())
        beside = ids.roll(1, dims=1)
        logits = TABLE[beside, (torch.arange(ids.shape[1]) + ids.sum(dim=1, keepdim=True)) % 64]
        return logits + 50.0 * ~ALLOWED


def start_of(free: list[bool], samples: int) -> torch.Tensor:
    given = [2, *(MASK if one else 5 + number % 7 for number, one in enumerate(free)), 3]
    return torch.tensor([given]).repeat(samples, 1)


mask_predict, diffusion = (functools.partial(fill_masks, again=again) for again in (True, False))
WAYS = [pytest.param(mask_predict, id="mask-predict"), pytest.param(diffusion, id="diffusion")]
FREE = st.lists(st.booleans(), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=30, deadline=None)
@given(FREE, st.integers(1, 3), st.integers(1, 6), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 9))
def test_what_is_given_stays_and_specials_are_never_written(way, free, samples, iterations, temperature, seed):
    start = start_of(free, samples)
    open_places = (start == MASK)[0]
    model = Model()
    steps = list(way(model, start, MASK, iterations, Draws(ALLOWED, temperature, seed)))
    assert len(steps) == iterations
    assert all(ALLOWED[step[:, open_places]].all() for step in steps)
    for ids in (*steps, *model.asked):
        assert torch.equal(ids[:, ~open_places], start[:, ~open_places])
    assert torch.equal(start, start_of(free, samples))


def test_mask_predict_masks_anew_the_tokens_it_was_the_least_sure_of():
    model, free = Model(), 9
    steps = list(mask_predict(model, start_of([True] * free, 2), MASK, 3, Draws(ALLOWED, temperature=0.7)))
    assert [(asked == MASK).sum(dim=1).tolist() for asked in model.asked] == [[9, 9], [6, 6], [3, 3]]
    sure = torch.zeros(2, free + 2, dtype=torch.float64)
    for asked, step in zip(model.asked, steps, strict=True):
        masked = asked == MASK
        for row in range(2):
            if masked[row].sum() < free:
                kept = torch.tensor([not masked[row, place] and 0 < place <= free for place in range(free + 2)])
                assert sure[row][masked[row]].max() <= sure[row][kept].min()
        chances = Model()(asked).masked_fill(~ALLOWED, -torch.inf).softmax(dim=-1)
        found = chances.gather(-1, step[..., None])[..., 0]
        sure = torch.where(masked, found, sure)
        assert torch.equal(step[~masked], asked[~masked])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.7]))
def test_diffusion_unmasks_the_surest_tokens_equally_many_in_each_iteration(free, iterations, temperature):
    model = Model()
    steps = list(diffusion(model, start_of([True] * free, 2), MASK, iterations, Draws(ALLOWED, temperature)))
    masked = [(asked == MASK) for asked in model.asked] + [steps[-1] == MASK]
    written = np.array([(before & ~after).sum(dim=1).tolist() for before, after in itertools.pairwise(masked)])
    assert written.sum(axis=0).tolist() == [free] * 2
    assert np.ptp(written, axis=0).max() <= 1
    texts = [*model.asked, steps[-1]]
    for before, after in itertools.pairwise(texts):
        assert torch.equal(before[before != MASK], after[before != MASK])  # what is unmasked stays
        if temperature == 0:
            surest = Model()(before).masked_fill(~ALLOWED, -torch.inf).softmax(dim=-1).amax(dim=-1)
            for row in range(2):
                new = (before[row] == MASK) & (after[row] != MASK)
                rest = surest[row][after[row] == MASK]
                if len(rest) and new.any():
                    assert surest[row][new].min() >= rest.max()


@pytest.mark.parametrize("way", WAYS)
def test_at_temperature_zero_the_likeliest_is_taken_whatever_the_seed(way):
    start = start_of([True] * 5, 1)
    first, second = (list(way(Model(), start, MASK, 4, Draws(ALLOWED, 0, seed)))[-1] for seed in (0, 1))
    assert torch.equal(first, second)
    model = Model()
    step = next(iter(way(model, start_of([False, True, False], 1), MASK, 1, Draws(ALLOWED, 0))))
    logits = Model()(model.asked[0])[0, 2].masked_fill(~ALLOWED, -torch.inf)
    assert step[0, 2] == logits.argmax()


@pytest.mark.parametrize("way", WAYS)
def test_texts_are_keyed_by_seed_and_sample_alone(way):
    start = start_of([True] * 8, 4)
    texts = [list(way(Model(), start, MASK, 3, Draws(ALLOWED, seed=3)))[-1] for _ in range(2)]
    assert torch.equal(*texts)
    assert len({tuple(text) for text in texts[0].tolist()}) == 4
    alone = list(way(Model(), start[:1], MASK, 3, Draws(ALLOWED, seed=3, first=2)))[-1]
    assert torch.equal(alone[0], texts[0][2])
    assert not torch.equal(list(way(Model(), start, MASK, 3, Draws(ALLOWED, seed=4)))[-1], texts[0])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_are_drawn_with_their_probabilities(temperature):
    logits = TABLE[0, 0].clone()
    scores = logits.masked_fill(~ALLOWED, -torch.inf)
    expected = (scores / temperature).softmax(dim=-1)
    n = 40_000
    draws = Draws(ALLOWED, temperature, seed=5)
    ids, sure = draws.choose(logits.expand(n, -1), draws.uniform(n, 1, 0)[:, 0])
    counts = torch.bincount(ids, minlength=VOCABULARY)
    deviation = (n * expected * (1 - expected)).sqrt()
    assert (counts[expected == 0] == 0).all()
    assert ((counts - n * expected).abs() <= 5 * deviation + 1e-9).all()
    plain = logits.masked_fill(~ALLOWED, -torch.inf).softmax(dim=-1)
    assert torch.allclose(sure, plain[ids])


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-3])
def test_at_tiny_temperatures_the_likeliest_is_drawn(temperature):
    logits = TABLE[0, :8] + 50.0 * ~ALLOWED
    draws = Draws(ALLOWED, temperature, seed=1)
    ids, _ = draws.choose(logits, draws.uniform(8, 1, 0)[:, 0])
    assert torch.equal(ids, logits.masked_fill(~ALLOWED, -torch.inf).argmax(dim=-1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused_where_they_count(value, temperature):
    logits, draws = TABLE[0, :2].clone(), Draws(ALLOWED, temperature)
    logits[1, SPECIAL] = value
    assert ALLOWED[draws.choose(logits, torch.tensor([0.5, 0.5]))[0]].all()
    logits[1, 7] = value
    with pytest.raises(UserError, match="logits are not all finite"):
        draws.choose(logits, torch.tensor([0.5, 0.5]))


def test_draws_of_positions_samples_and_steps_differ():
    draws = Draws(ALLOWED, seed=6)
    numbers = torch.cat([draws.uniform(5, 7, step).flatten() for step in range(6)])
    assert len(numbers.unique()) == len(numbers)
    assert 0 <= numbers.min() < 0.05 < 0.95 < numbers.max() < 1
    ends = torch.tensor([0, 1 - 2.0**-52], dtype=torch.float64)
    choice, _ = draws.choose(TABLE[0, :2], ends)
    assert ALLOWED[choice].all()


def test_left_to_right_draws_each_token_until_all_texts_have_the_end():
    """The logits are equal, so that the draws alone decide. The start has the end too, which does not count."""
    start, predict = start_of([False] * 5, 3), lambda ids: torch.zeros(len(ids), 1, VOCABULARY)
    whole, ended = ([*left_to_right(predict, start, 40, Draws(ALLOWED), end)][-1][:, 7:].tolist() for end in (None, 9))
    assert all(len({*text}) > 4 for text in whole)
    assert ended == [text[: max(other.index(9) for other in whole) + 1] for text in whole]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    wordpiece_set(folder / "data", [[[5, 6]]], [source("text", "", 0, 1, 1, 2)])
    tokenizer = folder / "data" / "tokenizer" / "tokenizer.json"
    tiny_model(folder / "mlm", tokenizer, positions=24)
    tiny_model(folder / "clm", tokenizer, causal=True, positions=24)
    return folder


def test_texts_of_a_real_model_do_not_depend_on_how_they_are_batched(folder):
    for name in ("mlm", "clm"):
        writer = Writer(folder / name)
        request = GenerationRequest("the ship", length=6, samples=5, seed=2)
        together = [ids for ids, _ in writer.write(request)]
        assert len(set(map(tuple, together))) > 1
        assert [ids for ids, _ in Writer(folder / name, max_logits=1).write(request)] == together
        counts = Counter(id for ids in together for id in ids)
        assert counts[2] == 5
        assert counts[3] == (5 if name == "mlm" else 0)
        assert not counts[0] + counts[1] + counts[4]
        assert all(ids[1:3] == [5, 6] for ids in together)


def test_a_causal_model_writes_what_transformers_does_at_temperature_zero(folder):
    writer = Writer(folder / "clm")
    ((written, new),) = writer.write(GenerationRequest("the ship", length=8, temperature=0))
    (model, _), specials = load_language_model(folder / "clm"), torch.arange(len(WORDS)) < 5
    ids = [2, 5, 6]
    for _ in range(8):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1].masked_fill(specials, -torch.inf)
        ids.append(int(logits.argmax()))
    assert written == ids
    assert new == [False] * 3 + [True] * 8


def test_masks_are_filled_with_the_most_likely_tokens(folder):
    (model, _), specials = load_language_model(folder / "mlm"), torch.arange(len(WORDS)) < 5
    with torch.inference_mode():
        logits = model(torch.tensor([[2, 4, 6, 4, 3]])).logits[0, [1, 3]].masked_fill(specials, -torch.inf)
    found = Writer(folder / "mlm").fill("[MASK] ship [MASK]", top_k=len(WORDS))
    for tokens, expected in zip(found, logits.softmax(dim=-1), strict=True):
        assert [id for id, _ in tokens] == expected.argsort(descending=True)[: len(WORDS) - 5].tolist()
        assert [share for _, share in tokens] == pytest.approx(expected[[id for id, _ in tokens]].tolist())
        assert sum(share for _, share in tokens) == pytest.approx(1)
    with pytest.raises(UserError, match=r"fills no masks\. Use maskwright generate\."):
        Writer(folder / "clm").fill("the [MASK]")


def test_a_text_without_a_mask_is_refused_before_the_model_is_loaded(folder, tmp_path):
    shutil.copytree(folder / "mlm", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_text("damaged")
    said = refused("fill", tmp_path / "model", "the [MASK]", "no mask")
    assert "No [MASK] in 'no mask'. Write [MASK] where a word is missing." in said
    assert "No [MASK]" not in command("fill", tmp_path / "model", "the [MASK]").err


def test_a_causal_model_gives_logits_of_the_last_place_alone_and_batches_by_the_length_in_the_end(folder, monkeypatch):
    writer, shapes = Writer(folder / "clm", max_logits=2 * 8 * len(WORDS)), []
    forward = BertLMHeadModel.forward

    @functools.wraps(forward)
    def noted(self, **inputs):
        found = forward(self, **inputs)
        shapes.append(tuple(found.logits.shape[:2]))
        return found

    monkeypatch.setattr(BertLMHeadModel, "forward", noted)
    assert len(list(writer.write(GenerationRequest("the ship", length=5, samples=4)))) == 4
    assert shapes == [(2, 1)] * 10


def test_a_text_may_begin_with_bos(folder, tmp_path):
    tokenizer = (folder / "data" / "tokenizer" / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    model = tiny_model(tmp_path / "model", tmp_path / "tokenizer.json", causal=True)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["bos_token"] = settings.pop("cls_token")
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    shown = json.loads(run(model, "--prompt", "the ship", "--json").output)
    assert shown["ids"][:3] == [2, 5, 6]
    assert "CLS" not in shown["text"]
    del settings["bos_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="its tokenizer has no cls token"):
        Writer(model)


def test_an_id_beyond_the_model_s_is_refused(folder, tmp_path):
    model = tiny_model(tmp_path / "model", folder / "data" / "tokenizer" / "tokenizer.json")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["schooner"] = len(WORDS)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    run(model, "--prompt", "the [MASK]")
    with pytest.raises(UserError, match=f"gives the prompt an id of {len(WORDS)}, and its model knows those below"):
        list(Writer(model).write(GenerationRequest("the schooner [MASK]")))


def test_a_mask_may_be_written_in_the_usual_way_whatever_the_tokenizer_calls_it(folder, tmp_path):
    tokenizer = (folder / "data" / "tokenizer" / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(tokenizer.replace("[MASK]", "<mask>"))
    writer = Writer(tiny_model(tmp_path / "model", tmp_path / "tokenizer.json", mask="<mask>"))
    for prompt in ("the [MASK] sail", "the <mask> sail"):
        ((_, new),) = writer.write(GenerationRequest(prompt))
        assert new == [False, False, True, False, False]


def test_the_command_writes_text_and_json(folder):
    found = run(folder / "mlm", "--prompt", "the [MASK] [MASK] sail", "--samples", 2, "--json")
    texts = [json.loads(line) for line in found.output.splitlines()]
    assert [text["sample"] for text in texts] == [0, 1]
    for text in texts:
        assert text["ids"][:2] + text["ids"][4:] == [2, 5, 8, 3]
        assert text["text"].startswith("the")
    shown = run(folder / "mlm", "--prompt", "the [MASK] [MASK] sail", "--sampler", "diffusion", "--samples", 2)
    assert [line[:7] for line in shown.output.splitlines()] == ["0: the ", "1: the "]
    assert "\x1b[2J" not in run(folder / "clm", "--length", 20, "--samples", 5).output  # a token of this vocabulary


def test_what_does_not_fit_is_said_in_a_sentence(folder, tmp_path):
    for arguments, message in [
        ([folder / "mlm", "--prompt", "the [MASK]", "--length", 3], "has 1 masks, .* Remove --length"),
        ([folder / "mlm", "--length", 23], "would have 25 tokens, and .* takes 24 at most"),
        ([folder / "clm", "--length", 24], "would have 25 tokens"),
        ([folder / "clm", "--sampler", "diffusion"], "Remove --sampler"),
        ([folder / "clm", "--iterations", 3], "and --iterations"),
        ([folder / "clm", "--prompt", "the [MASK]"], "fills no masks"),
        ([tmp_path], "not a Hugging Face model folder or a run folder"),
        ([folder / "mlm", "--temperature", "inf"], "--temperature must be a finite number, 0 or more, not inf."),
        ([folder / "mlm", "--prompt", "caf\udce9"], "--prompt is not valid UTF-8"),
    ]:
        with pytest.raises(UserError, match=message):
            run(*arguments)
    run(folder / "mlm", "--length", 22)
