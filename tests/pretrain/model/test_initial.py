"""model.init: initial weights from a Hugging Face BERT, or a one-line refusal."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import BertModel

from data_prep.common.errors import UserError
from pretrain.model import Encoder, EncoderShape, weights_digest
from pretrain.model.families import VOCABULARY, hugging_face_config, hugging_face_model
from pretrain.model.pretrained_init import initial_state
from tests.support.wordpiece_set import wordpiece_set

SHAPE = EncoderShape(vocab_size=70, layers=2, hidden=16, heads=2, intermediate=32, max_positions=24, pad_id=0)


def exported(shape: EncoderShape, folder: Path) -> Encoder:
    """An encoder whose model of transformers is in the folder."""
    encoder = Encoder(shape)
    encoder.initialize(3)
    hugging_face_model(encoder.state_dict(), shape).save_pretrained(folder)
    return encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> tuple[Encoder, Path]:
    folder = tmp_path_factory.mktemp("model") / "bert"
    return exported(SHAPE, folder), folder


@pytest.fixture
def encoder(model) -> Encoder:
    return model[0]


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return Path(shutil.copytree(model[1], tmp_path / "bert"))


def refusal(folder: Path, shape: EncoderShape = SHAPE, tokenizer: Path | None = None, **how: str) -> str:
    with pytest.raises(UserError) as caught:
        initial_state(folder, shape, tokenizer, **how)
    message = str(caught.value)
    assert message.startswith("model.init: ")
    assert "\n" not in message
    return message


def changed(folder: Path, **values) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


@pytest.mark.parametrize(
    ("form", "refused"),
    [
        ({}, {}),
        ({"arch": "roberta", "norm_eps": 1e-5, "pad_id": 1}, {}),
        *(({"arch": "modernbert", "layers": layers, "norm_eps": 1e-5}, {}) for layers in (1, 2, 3, 4)),
        ({"arch": "modernbert", "layers": 4, "norm_eps": 1e-5, "causal": True}, {}),
        ({"arch": "eurobert", "kv_heads": 1, "norm_eps": 1e-5}, {"kv_heads": (2, "num_key_value_heads is 1")}),
        ({"arch": "esm", "mask_id": 4, "norm_eps": 1e-5}, {"mask_id": (5, "mask_id is 4")}),
    ],
    ids=str,
)
def test_the_weights_come_back_bit_for_bit(form, refused, tmp_path):
    """Of a ModernBERT that is too shallow for a second global layer, too, and of one that becomes a masked model."""
    shape = replace(SHAPE, **form)
    encoder, masked = exported(shape, tmp_path), replace(shape, causal=False)
    other = Encoder(masked)
    other.initialize(4)
    other.load_state_dict(initial_state(tmp_path, masked))
    other.reset_padding_rows()
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    for name, (value, message) in refused.items():
        assert message in refusal(tmp_path, replace(shape, **{name: value}))


def exported_modernbert(folder: Path) -> EncoderShape:
    """A model of rows of 24 tokens, trained with a rotary base of 10,000 in all layers and a window of 8."""
    ropes = {"rope_theta": 10_000.0, "local_rope_theta": 10_000.0}
    shape = replace(SHAPE, arch="modernbert", layers=5, norm_eps=1e-5, window=8, **ropes)
    exported(shape, folder)
    return shape


def test_a_modernbert_goes_on_with_longer_rows_and_another_rotary_base(tmp_path):
    """No weight depends on them, so the run decides, and reports it."""
    shape, said = exported_modernbert(tmp_path), []
    longer = replace(shape, max_positions=8192, rope_theta=160_000.0, window=16)
    assert initial_state(tmp_path, shape, say=said.append).keys() == initial_state(tmp_path, longer).keys()
    assert said == []
    initial_state(tmp_path, longer, say=said.append)
    assert [line.split(" was trained with ")[1] for line in said] == [
        "model.local_attention 8; this run uses 16",
        "model.global_rope_theta 10000; this run uses 160000",
    ]


def test_other_kinds_of_layers_are_refused(tmp_path):
    shape = exported_modernbert(tmp_path)
    assert "its num_hidden_layers is 5" in refusal(tmp_path, replace(shape, layers=6))
    assert "its global_every is 3, and only 2 can be trained" in refusal(tmp_path, replace(shape, global_every=2))
    ropes = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0}}
    assert "scaled rotary positions (full_attention)" in refusal(changed(tmp_path, rope_parameters=ropes), shape)


def test_fewer_positions_are_the_first_ones(folder, encoder):
    found = initial_state(folder, replace(SHAPE, max_positions=10))
    assert torch.equal(found["position_embedding"], encoder.position_embedding[:10])


def test_half_precision_and_first_names_of_norms(folder, encoder):
    path = folder / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor.half()
        for name, tensor in load_file(path).items()
    }
    assert any(name.endswith("gamma") for name in old)
    save_file(old, path)
    found = initial_state(folder, SHAPE)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert torch.equal(found["head_norm.weight"], encoder.head_norm.weight)


def test_the_digest_is_of_the_weights(folder, tmp_path):
    before = weights_digest(folder)
    shutil.move(folder, tmp_path / "moved")
    assert weights_digest(tmp_path / "moved") == before
    path = tmp_path / "moved" / "model.safetensors"
    state = load_file(path)
    state["cls.predictions.bias"][0] += 1
    save_file(state, path)
    assert weights_digest(tmp_path / "moved") != before
    with pytest.raises(UserError, match=r"model\.init: .* cannot be read"):
        weights_digest(tmp_path)


def test_rows_of_a_vocabulary_that_no_token_has_are_left_out(folder, encoder, tmp_path):
    """As in ModernBERT, whose vocabulary was padded before training."""
    vocabulary = {f"t{id}": id for id in range(67)}
    for path in (folder, tmp_path / "data"):
        path.mkdir(exist_ok=True)
        Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(path / "tokenizer.json"))
    shape = replace(SHAPE, vocab_size=67)
    found, given = initial_state(folder, shape, tmp_path / "data"), encoder.state_dict()
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given.keys() - {*VOCABULARY})
    for name in given.keys() & {*VOCABULARY}:
        assert torch.equal(found[name][:67], given[name][:67])
        assert not found[name][67:].any()
    other = {**vocabulary, "new": 66}
    del other["t66"]
    Tokenizer(models.WordLevel(other, unk_token="t0")).save(str(tmp_path / "data/tokenizer.json"))
    assert "has another vocabulary than data.train" in refusal(folder, shape, tmp_path / "data")


@pytest.mark.parametrize(
    ("size", "shape", "wanted"),
    [
        ("same", {"layers": 3}, "2 and model.size.layers is 3; to start a larger model from it, set model.init_size"),
        ("same", {"layers": 1}, "its num_hidden_layers is 2 and model.size.layers is 1"),
        ("same", {"hidden": 32}, "its hidden_size is 16 and model.size.hidden is 32"),
        ("same", {"heads": 4}, "its num_attention_heads is 2 and model.size.heads is 4"),
        ("same", {"intermediate": 64}, "its intermediate_size is 32 and model.size.intermediate is 64"),
        (
            "same",
            {"vocab_size": 71},
            "has 70 tokens and that of data.train 71: prepare the data with its own tokenizer",
        ),
        ("same", {"max_positions": 25}, "its table of positions ends at 24, and rows or model.max_positions need 25"),
        ("tile", {"layers": 1, "hidden": 32, "heads": 4}, "layers is 1; only a larger model can start from it"),
        ("tile", {"hidden": 32}, "its heads have 8 dimensions and heads of model.size 16: heads are copied whole"),
    ],
)
def test_another_shape_is_named(folder, size, shape, wanted):
    message = refusal(folder, replace(SHAPE, **shape), size=size)
    assert wanted in message
    assert size == "same" or "model.init_size" not in message


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"model_type": "roberta"}, "a model of type 'roberta', and model.arch is 'bert'"),
        ({"layer_norm_eps": 1e-5}, "its norm_eps is 1e-05"),
        ({"max_position_embeddings": "many"}, "is no configuration of a model"),
    ],
)
def test_other_models_are_refused(folder, values, wanted):
    assert wanted in refusal(changed(folder, **values))


def test_folders_that_hold_no_model(folder, tmp_path):
    assert "nowhere is no folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(tmp_path / "empty")
    (folder / "config.json").write_text("{")
    assert "config.json cannot be used" in refusal(folder)
    (folder / "config.json").write_text("[]")
    assert "it is [], not an object" in refusal(folder)


def test_a_pickle_is_never_opened(folder):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    assert "has no model.safetensors, the only file of weights that is read" in refusal(folder)


def test_weights_that_do_not_fit(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert "model.safetensors cannot be read" in refusal(folder)
    path.write_bytes(whole)
    state = load_file(path)
    for name, tensor in (
        ("cls.predictions.bias", torch.zeros(5)),
        ("bert.embeddings.LayerNorm.weight", torch.zeros(5)),
        ("bert.encoder.layer.1.attention.self.key.weight", torch.zeros(16, 3)),
        ("bert.embeddings.position_embeddings.weight", torch.tensor(1.0)),
    ):
        save_file(state | {name: tensor}, path)
        assert "does not go with its config.json" in refusal(folder)


def test_a_model_without_its_head_is_refused(folder):
    BertModel(hugging_face_config(SHAPE)).save_pretrained(folder)
    assert "holds no masked language model: its weights lack '" in refusal(folder)


def test_another_vocabulary_of_the_same_size_is_refused(folder, tmp_path):
    tokenizer = wordpiece_set(tmp_path / "set", [[[5]]], []).path / "tokenizer"
    shutil.copy(tokenizer / "tokenizer.json", folder)
    initial_state(folder, SHAPE, tokenizer)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"ship"', '"boat"'))
    message = refusal(folder, SHAPE, tokenizer)
    assert "another vocabulary than data.train" in message
    assert message.endswith("or set model.init_vocabulary to pieces")
    (folder / "tokenizer.json").write_text("{")
    assert "cannot be compared" in refusal(folder, SHAPE, tokenizer)


def test_a_model_with_another_tokenizer_keeps_all_but_its_embeddings(folder, encoder, tmp_path):
    tokenizer = wordpiece_set(tmp_path / "set", [[[5]]], []).path / "tokenizer"
    shutil.copy(tokenizer / "tokenizer.json", folder)
    other = shutil.copytree(tokenizer, tmp_path / "other")
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    vocabulary.add_tokens(["ships sail"])
    vocabulary.save(str(other / "tokenizer.json"))
    shape, said = replace(SHAPE, vocab_size=12), []
    found = initial_state(folder, shape, other, said.append, vocabulary="pieces")
    table, bias = encoder.word_embedding.detach(), encoder.decoder_bias.detach()
    assert torch.equal(found["word_embedding"][:10], table[:10])
    assert torch.allclose(found["word_embedding"][11], table[[6, 7, 8]].mean(0))
    assert torch.allclose(found["decoder_bias"][11], bias[[6, 7, 8]].mean())
    for name in encoder.state_dict().keys() - {"word_embedding", "decoder_bias"}:
        assert torch.equal(found[name], encoder.state_dict()[name]), name
    (line,) = said
    assert line.startswith("model.init: of 12 tokens, 11 start with one embedding of ")
    assert line.endswith(", 1 with the mean of several, 0 with the mean of all")


def test_another_padding_token_moves_roberta_s_positions(tmp_path):
    """Its table begins after the id of the padding token: 1 in the model, 0 in the data."""
    shape = replace(SHAPE, arch="roberta", norm_eps=1e-5, pad_id=1)
    encoder = exported(shape, tmp_path)
    tokenizer = wordpiece_set(tmp_path / "set", [[[5]]], []).path / "tokenizer"
    shutil.copy(tokenizer / "tokenizer.json", tmp_path)
    found = initial_state(tmp_path, replace(shape, pad_id=0, vocab_size=11), tokenizer, vocabulary="pieces")
    assert torch.equal(found["position_embedding"][1:], encoder.position_embedding[2:])
    assert "its first_position is 2, and only 1 can be trained" in refusal(tmp_path, replace(shape, pad_id=0))


def test_another_tokenizer_needs_that_of_the_model(folder, tmp_path):
    tokenizer = wordpiece_set(tmp_path / "set", [[[5]]], []).path / "tokenizer"
    message = refusal(folder, SHAPE, tokenizer, vocabulary="pieces")
    assert "has no tokenizer.json; convert it with transformers" in message
    shutil.copy(tokenizer / "tokenizer.json", folder)
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    vocabulary.add_tokens([f"[{number}]" for number in range(60)])
    vocabulary.save(str(folder / "tokenizer.json"))
    message = refusal(folder, SHAPE, tokenizer, vocabulary="pieces")
    assert message.endswith("has 71 tokens, but the model has 70 embeddings")


def test_a_larger_model_takes_a_smaller_one(folder, encoder):
    found = initial_state(folder, replace(SHAPE, layers=3), size="tile", seed=5)
    own = encoder.state_dict()
    for number, source in enumerate((0, 1, 1)):
        name = "mlp_in.bias"
        assert torch.equal(found[f"layers.{number}.{name}"], own[f"layers.{source}.{name}"])
    equal = initial_state(folder, SHAPE, size="tile")
    assert all(torch.equal(equal[name][:70], tensor[:70]) for name, tensor in own.items())
