"""Model folders: names that transformers 4 and 5 both know, and permissions that follow the umask."""

import json
import os
import stat
from dataclasses import asdict

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from data_prep.tokenizer import describe_tokenizer, train_tokenizer
from pretrain.export import save_model
from pretrain.export.hugging_face_export import write_model
from pretrain.model import EncoderShape, build, exported

TEXTS = ["a sailor sailed the seas"] * 9


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "tokenizer"
    train_tokenizer(TEXTS, "wordpiece", 60, folder)
    return folder


@pytest.fixture
def model():
    sizes = {"vocab_size": 60, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return BertForMaskedLM(BertConfig(**sizes, intermediate_size=8))


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o027, 0o640), (0o002, 0o664)])
def test_files_have_the_modes_of_the_umask(umask, mode, model, tokenizer, tmp_path):
    before = os.umask(umask)
    try:
        (tmp_path / "model").mkdir()
        save_model(model, AutoTokenizer.from_pretrained(tokenizer), tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {mode}, modes


def test_a_tokenizer_that_transformers_5_saved_gets_names_of_both_versions(model, tokenizer, tmp_path):
    """As of a data set that was prepared with such a tokenizer, whose files keep their checksums."""
    old = AutoTokenizer.from_pretrained(tokenizer, additional_special_tokens=["<user>"])
    old.save_pretrained(tmp_path / "old")
    assert '"TokenizersBackend"' in (tmp_path / "old/tokenizer_config.json").read_text()
    before = describe_tokenizer(tmp_path / "old").sha256
    save_model(model, AutoTokenizer.from_pretrained(tmp_path / "old"), tmp_path / "new")
    settings = json.loads((tmp_path / "new/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not settings.keys() & {"backend", "is_local", "local_files_only", "extra_special_tokens"}
    new = AutoTokenizer.from_pretrained(tmp_path / "new")
    text = "a <user> [MASK] sailed"
    assert new(text)["input_ids"] == old(text)["input_ids"]
    assert new.all_special_tokens == old.all_special_tokens
    assert new.decode(new(text)["input_ids"], skip_special_tokens=True) == "a sailed"
    assert describe_tokenizer(tmp_path / "old").sha256 == before


@pytest.mark.parametrize("longest", [64, None])
def test_a_tokenizer_s_longest_text_is_the_model_s(longest, tokenizer, tmp_path):
    """Regardless of the tokenizer of the data set. Pairs of texts are not cut earlier."""
    given = AutoTokenizer.from_pretrained(tokenizer, model_max_length=24)
    given.save_pretrained(tmp_path / "tokenizer")
    sizes = {"layers": 1, "hidden": 8, "heads": 1, "intermediate": 8, "max_positions": longest or 24, "pad_id": 0}
    description = asdict(EncoderShape(**sizes, vocab_size=60, arch="bert" if longest else "modernbert"))
    (tmp_path / "model").mkdir()
    model = exported(build(description, seed=0).state_dict(), description)
    write_model(model, tmp_path / "tokenizer", longest, tmp_path / "model")
    found = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert found.model_max_length == (longest or pytest.approx(1e30))
    pair = found("the seas " * 20, "a sailor sailed " * 20, truncation=True)["input_ids"]
    assert len(pair) == (longest or len(found("the seas " * 20, "a sailor sailed " * 20)["input_ids"]))
    assert len(pair) >= 64
