"""Model names of users: a Hugging Face folder or a run."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, normalizers, processors
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLMHeadModel,
    ElectraConfig,
    ElectraForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
)

from data_prep.common.errors import UserError
from data_prep.tokenizer import load, train_tokenizer
from evaluation.finetuning.experiment import _longest
from evaluation.generation import Writer
from pretrain.checkpoint import Checkpoint, read
from pretrain.checkpoint.saver import write_parts
from pretrain.export import exported_folder, load_language_model, load_tokenizer, model_folder
from pretrain.export.export_record import ExportRecord
from pretrain.export.resolve_model import is_causal, load_model
from tests.support.checkpoints import make_checkpoint, snapshot
from tests.support.finetuning import tiny_model
from tests.support.hostile_json import NESTED

CONFIG = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=1, intermediate_size=8)


def test_a_model_folder_is_itself_and_loads_in_evaluation_mode(tmp_path):
    BertForMaskedLM(CONFIG).save_pretrained(tmp_path)
    assert model_folder(tmp_path) == tmp_path
    assert not load_model(tmp_path, AutoModelForMaskedLM).training
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is an empty folder, not a Hugging Face model folder or a run folder"):
        model_folder(tmp_path / "empty")


def test_an_export_of_an_earlier_checkpoint_of_a_step_is_refused(tmp_path):
    """A run that goes back trains a step again: its export has the weights of the first time."""
    path, export = make_checkpoint(tmp_path / "checkpoints", 8), tmp_path / "exports/step-00000008"
    export.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    ExportRecord.write(export, read(path))
    assert exported_folder(tmp_path, 8) == export
    path.rename(path.with_name("step-00000008.aside-1"))
    assert exported_folder(tmp_path, 8) == export, "its checkpoint is gone, as after checkpoint.keep"
    Checkpoint(path, 8, {"again": True}, write_parts(path, snapshot(path, False))).write()
    with pytest.raises(UserError, match=r"step 8 was trained again\. Remove the folder"):
        exported_folder(tmp_path, 8)
    (path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"step-00000008/manifest\.json: there is no such file"):
        exported_folder(tmp_path, 8)


@pytest.mark.parametrize(
    "name, text", [*((f"{name}.json", NESTED) for name in ("config", "tokenizer_config", "tokenizer")),
                   ("tokenizer.json", '{"added_tokens": []}')],
)  # fmt: skip
def test_settings_that_cannot_be_read_are_said_in_a_sentence(tmp_path, name, text):
    tiny_model(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="holds no tokenizer that can be loaded"):
        load_tokenizer(tmp_path)
    if name == "config.json":
        with pytest.raises(UserError, match=r"config\.json cannot be used"):
            is_causal(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "no-such-type"},
        {"num_attention_heads": 0},
        {"num_attention_heads": 3},
        {"hidden_size": 16},
        {"hidden_size": "many"},
        {"hidden_act": ["gelu"]},
        {"quantization_config": {"quant_method": "mxfp4"}},
        "pickle",
        "adapter",
    ],
    ids=str,
)
def test_what_is_no_model_that_can_be_loaded_is_said_in_one_line(tmp_path, change):
    config = json.loads((tiny_model(tmp_path) / "config.json").read_text())
    if change == "pickle":
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    elif change == "adapter":
        (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/"}')
    else:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
    said = "no model for AutoModelForMaskedLM can be loaded|its weights are quantized|holds an adapter"
    with pytest.raises(UserError, match=said) as refused:
        load_model(tmp_path, AutoModelForMaskedLM)
    assert len(str(refused.value)) <= 300


@pytest.mark.parametrize("most", ["long", 0, float("nan")])
def test_a_tokenizer_with_a_wrong_length_is_refused(tmp_path, most):
    config = json.loads((tiny_model(tmp_path) / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": most}))
    with pytest.raises(UserError, match="holds no tokenizer that can be loaded"):
        load_tokenizer(tmp_path)


def without(folder, *names):
    """The weights in a folder, except those whose name contains one of `names`."""
    weights = load_file(folder / "model.safetensors")
    left = {name: value for name, value in weights.items() if not any(part in name for part in names)}
    assert len(left) < len(weights)
    save_file(left, folder / "model.safetensors", {"format": "pt"})


def test_weights_that_are_missing_are_not_made_up(tmp_path):
    BertForMaskedLM(CONFIG).save_pretrained(tmp_path / "layer")
    without(tmp_path / "layer", "layer.1.")
    for auto_class, new_head in ((AutoModelForMaskedLM, False), (AutoModelForSequenceClassification, True)):
        with pytest.raises(UserError, match=r"lacks weights that Bert\w+ needs \(bert\.encoder\.layer\.1\..* more\)"):
            load_model(tmp_path / "layer", auto_class, new_head)
    sizes = {name: getattr(CONFIG, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    ElectraForPreTraining(ElectraConfig(**sizes, num_attention_heads=1)).save_pretrained(tmp_path / "electra")
    with pytest.raises(UserError, match="lacks weights that ElectraForMaskedLM needs"):
        load_language_model(tmp_path / "electra")
    assert load_model(tmp_path / "electra", AutoModelForSequenceClassification, new_head=True)


def test_a_new_head_may_have_another_shape_and_an_encoder_may_not(tmp_path):
    BertForSequenceClassification(BertConfig(**CONFIG.to_diff_dict() | {"num_labels": 3})).save_pretrained(tmp_path)
    assert load_model(tmp_path, AutoModelForSequenceClassification, True, num_labels=2).classifier.out_features == 2
    with pytest.raises(UserError, match="no model for AutoModelForSequenceClassification can be loaded"):
        load_model(tmp_path, AutoModelForSequenceClassification, False, num_labels=2)
    with pytest.raises(UserError, match=r"lacks weights that BertForSequenceClassification needs \(bert\.encoder"):
        load_model(tmp_path, AutoModelForSequenceClassification, True, intermediate_size=24)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_may_be_tied_or_new_where_that_is_said(tied, tmp_path):
    config = BertConfig(**CONFIG.to_diff_dict() | {"tie_word_embeddings": tied})
    model = BertForMaskedLM(config)
    model.save_pretrained(tmp_path)
    assert ("cls.predictions.decoder.weight" in load_file(tmp_path / "model.safetensors")) != tied
    loaded = load_model(tmp_path, AutoModelForMaskedLM).get_output_embeddings().weight
    assert torch.equal(loaded, model.cls.predictions.decoder.weight)
    assert load_model(tmp_path, AutoModelForSequenceClassification, new_head=True).bert.pooler
    with pytest.raises(UserError, match=r"lacks weights that BertForSequenceClassification needs"):
        load_model(tmp_path, AutoModelForSequenceClassification)


def test_a_causal_head_needs_a_causal_body(tmp_path):
    """Without is_decoder, the tokens of an encoder see those that they are to predict."""
    BertLMHeadModel(CONFIG).save_pretrained(tmp_path / "sees")
    with pytest.raises(UserError, match="its tokens see those that they are to predict"):
        load_language_model(tmp_path / "sees")
    BertLMHeadModel(BertConfig(**CONFIG.to_diff_dict() | {"is_decoder": True})).save_pretrained(tmp_path / "causal")
    assert load_language_model(tmp_path / "causal")[1]
    GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path / "gpt2")
    assert load_language_model(tmp_path / "gpt2")[1]


def test_the_dropout_of_a_bpe_is_off(tmp_path):
    train_tokenizer(["a sailor sailed the seas"] * 9, "bpe", 280, tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    values = json.loads(file.read_text())
    values["model"]["dropout"] = 0.5
    file.write_text(json.dumps(values))
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    assert len({tuple(tokenizer("a sailor sailed the seas")["input_ids"]) for _ in range(50)}) == 1


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_a_config_cannot_make_transformers_load_code(key, tmp_path):
    """An attention named OWNER/NAME is downloaded from the hub and run; without the package `kernels` it fails."""
    path = tiny_model(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "kernels-community/evil"}))
    assert load_model(tmp_path, AutoModelForMaskedLM).config._attn_implementation in ("sdpa", "eager")
    assert _longest(tmp_path)


GROWING = {
    "one long replacement": {"normalizer": normalizers.Replace("a", "b" * 300)},
    "a chain of replacements": {"normalizer": normalizers.Sequence([normalizers.Replace("a", "aaaa")] * 6)},
    "a text between all characters": {"normalizer": normalizers.Replace(Regex("x*"), "b" * 250)},
    "a long beginning": {"normalizer": normalizers.Prepend("a" * 300)},
    "a repeated text": {"post_processor": processors.TemplateProcessing("$A " * 9 + "$A", None, [])},
}


@pytest.mark.parametrize("name", GROWING)
def test_a_tokenizer_that_makes_texts_much_longer_is_refused(name, tmp_path):
    tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for part, value in GROWING[name].items():
        setattr(tokenizer, part, value)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for load_it in (load_tokenizer, load):
        with pytest.raises(UserError, match="times longer, or adds more than"):
            load_it(tmp_path)


def test_no_file_of_a_model_is_a_pipe_or_in_another_folder(tmp_path):
    tiny_model(tmp_path / "model")
    index = tmp_path / "model" / "model.safetensors.index.json"
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "other.safetensors")
    names = dict.fromkeys(load_file(tmp_path / "other.safetensors"), "../other.safetensors")
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with pytest.raises(UserError, match="names no files of this folder"):
        load_model(tmp_path / "model", AutoModelForMaskedLM)
    index.unlink()
    os.mkfifo(tmp_path / "model" / "generation_config.json")
    for load_it in (load_tokenizer, load_language_model):
        with pytest.raises(UserError, match="is a pipe"):
            load_it(tmp_path / "model")


def test_a_very_long_text_is_not_filled(tmp_path):
    tiny_model(tmp_path)
    with pytest.raises(UserError, match="The text has 70,006 characters; at most 65,536 are read"):
        Writer(tmp_path).fill("[MASK]" + "a" * 70_000)


def test_what_a_model_is_follows_from_its_config(tmp_path):
    for config, causal in [
        ({"architectures": ["BertForMaskedLM"], "is_decoder": False}, False),
        ({"architectures": ["BertLMHeadModel"], "is_decoder": True}, True),
        ({"architectures": ["GPT2LMHeadModel"]}, True),
        ({"architectures": ["RobertaForCausalLM"]}, True),
        ({"is_decoder": True}, True),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert is_causal(tmp_path) is causal
    for config in ({}, {"architectures": ["BertModel"]}):  # transformers would draw a head at random
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="without a language model head"):
            is_causal(tmp_path)
    for config in ({"architectures": "BertModel"}, {"architectures": [7]}, {"is_decoder": "no"}, []):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match="cannot be used"):
            is_causal(tmp_path)
