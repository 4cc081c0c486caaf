"""Translation end to end: aligned files to a data set, a run alone and in a mixture, replay, export, generation."""

import json
from pathlib import Path

import pytest
import torch

from evaluation.generation import GenerationRequest, Writer
from pretrain.export import load_language_model, load_tokenizer
from pretrain.model import native_encoder
from tests.support import runs, text_data
from tests.support.in_process import command

STEPS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data set of sentences and their words in reverse, made through the command line."""
    folder = tmp_path_factory.mktemp("pairs")
    tokenizer = text_data.train_tokenizer(text_data.corpus(folder / "text.jsonl", 300), folder / "tok")
    sentences = text_data.sentences(300)
    (folder / "a.txt").write_text("\n".join(sentences))
    (folder / "b.txt").write_text("\n".join(" ".join(reversed(text.split())) for text in sentences))
    pair = f"pair:{folder / 'a.txt'},{folder / 'b.txt'}"
    limits = ("--valid-fraction", "0.1", "--max-pair-tokens", "62")
    runs.succeed("prep", "run", "--input", pair, "--tokenizer", tokenizer, "--out", folder / "data", *limits)
    return folder / "data"


@pytest.mark.parametrize(
    "objective", ["prefix", [{"kind": "prefix", "share": 0.5}, {"kind": "mlm", "share": 0.5}]], ids=["alone", "mixture"]
)
def test_a_run_translates(data, tmp_path, objective):
    run = tmp_path / "run"
    settings = {"train__steps": STEPS, "checkpoint__every_steps": 2, "eval__every_steps": 2, "track__models": "none"}
    runs.trained(data, run, objective=objective, data__seq_len=64, **settings)
    losses = runs.losses(run)
    assert list(losses) == [1, 2, 3, 4]
    assert losses[4] < losses[1]
    shown = command("replay", run, "--step", "2")
    assert shown.code == 0, shown.err
    assert "the second text is predicted, from the first one and the tokens before it" in shown.out
    assert "every token but special ones is predicted" not in shown.out
    assert command("export", run, "--view", "prefix", "--out", tmp_path / "model").code == 0
    assert "No class of transformers" in (tmp_path / "model" / "README.md").read_text()
    if objective != "prefix":
        assert command("export", run, "--out", tmp_path / "filler").code == 0
        assert native_encoder(load_language_model(tmp_path / "filler")[0]).shape.sep_id is None

    prompt = "the captain saw her letter."
    options = ("--temperature", "0", "--length", "6", "--json")
    written = command("generate", tmp_path / "model", "--prompt", prompt, *options)
    assert written.code == 0, written.err
    ids = json.loads(written.out)["ids"]
    assert ids == greedy(tmp_path / "model", prompt, 6)
    several = [ids for ids, _ in Writer(tmp_path / "model").write(GenerationRequest(prompt, length=50, samples=16))]
    ends = load_tokenizer(tmp_path / "model").sep_token_id
    source = len(ids) - 6
    assert len({len(ids) for ids in several}) > 1, "each text ends where the model ends it"
    assert not any(ends in ids[source:] for ids in several)


@torch.no_grad()
def greedy(folder: Path, text: str, most: int) -> list[int]:
    """The likeliest translation, with a mask of prefix attention for transformers' own class."""
    tokenizer, (model, causal) = load_tokenizer(folder), load_language_model(folder)
    assert not causal
    assert native_encoder(model).shape.sep_id == tokenizer.sep_token_id
    ids = [tokenizer.cls_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    source, unwritten = len(ids), set(tokenizer.all_special_ids) - {tokenizer.sep_token_id}
    for _ in range(most):
        query, key = torch.arange(len(ids))[:, None], torch.arange(len(ids))[None]
        mask = torch.where(query < source, key < source, key <= query)[None, None]
        logits = model(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0, -1]
        logits[[*unwritten]] = -torch.inf
        if (id := int(logits.argmax())) == tokenizer.sep_token_id:
            break
        ids.append(id)
    return ids
