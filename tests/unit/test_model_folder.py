"""What people name as a model: a Hugging Face folder or a run."""

import json

import pytest
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from data_prep.errors import UserError
from pretrain.model_folder import load_model, load_tokenizer, model_folder


def test_a_model_folder_is_itself_and_loads_in_evaluation_mode(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    assert model_folder(tmp_path) == tmp_path
    assert not load_model(tmp_path, AutoModelForMaskedLM).training
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_what_is_no_model_is_said_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"neither a Hugging Face model .* nor a run"):
        model_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    with pytest.raises(UserError, match="no model for AutoModelForMaskedLM can be loaded"):
        load_model(tmp_path, AutoModelForMaskedLM)


def test_a_pickle_is_not_opened(tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="no model for"):
        load_model(tmp_path, AutoModelForMaskedLM)
