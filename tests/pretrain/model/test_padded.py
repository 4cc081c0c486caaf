"""Other models of transformers: the results for a stream equal the results for each document alone."""

import json

import pytest
import torch
import torch.nn.functional as F

from data_prep.common.errors import UserError
from pretrain.masking import IGNORED
from pretrain.model import build, exported, longest_text
from pretrain.model.padded_model import padded_config
from tests.support import streams
from tests.support.datasets import tokenizer_info
from tests.support.hostile_json import NESTED

SEQ_LEN = 24
TOKENIZER = tokenizer_info(101)
LENGTHS = [24, 9, 12, 3, 10, 11, 3]  # the last is padding
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
# No dropout, so that two passes agree.
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KINDS = {
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "dropout": 0.0, "attention_dropout": 0.0},
    "electra": SMALL | STILL | {"embedding_size": 16},
    "deberta-v2": SMALL | STILL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "eurobert": SMALL | {"num_key_value_heads": 1},
}


def stream() -> dict[str, torch.Tensor]:
    batch = streams.stream(LENGTHS)
    batch["tokens"][-LENGTHS[-1] :] = 0
    return batch | {"masked_positions": torch.tensor([1, 23, 24, 40, 59, 0])}


def described(kind: str) -> dict:
    return {"arch": "auto", "config": padded_config({"model_type": kind, **KINDS[kind]}, SEQ_LEN, TOKENIZER)}


@pytest.mark.parametrize("kind", list(KINDS))
def test_documents_of_a_stream_are_as_alone(kind):
    model = build(described(kind), seed=3)
    batch = stream()
    found = model(**batch, seq_len=SEQ_LEN)
    alone = torch.cat([model.model(input_ids=part[None]).logits[0] for part in batch["tokens"].split(LENGTHS)])
    logits, used = alone[batch["masked_positions"]], batch["labels"] != IGNORED
    wanted = F.cross_entropy(logits, batch["labels"], ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(found.loss, wanted, rtol=1e-4, atol=1e-4)
    assert found.correct == ((logits.argmax(1) == batch["labels"]) & used).sum()
    assert found.predictions == 5
    found.loss.backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "decoder" in name)


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_follow_from_the_seed_and_survive_export(kind, tmp_path):
    description = json.loads(json.dumps(described(kind)))
    before = torch.random.get_rng_state()
    model, again, other = (build(description, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in again.state_dict().items())
    assert any(not torch.equal(state[name], tensor) for name, tensor in other.state_dict().items())
    exported(state, description).save_pretrained(tmp_path)
    loaded = type(model.model).from_pretrained(tmp_path)
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name


def test_a_stream_of_padding_alone_gives_nothing():
    model, batch = build(described("distilbert"), seed=3), stream()
    batch["tokens"][:], batch["labels"][:] = 0, IGNORED
    found = model(**batch, seq_len=SEQ_LEN)
    assert found.loss == 0
    found.loss.backward()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"model_type": "gpt2"}, "no masked language model of the kind 'gpt2'"),
        ({"model_type": "no-such"}, "no masked language model of the kind 'no-such'"),
        ({"hidden_size": 3}, "no masked language model of the kind None"),
        ({"model_type": "bert", "hidden_size": "wide"}, "these are no settings of the kind 'bert'"),
        ({"model_type": "bert", "max_position_embeddings": 8}, r"max_position_embeddings \(8\) is less than"),
        ({"model_type": "bert", "trust_remote_code": True}, r"brings code of its own \(trust_remote_code\)"),
        ({"model_type": ["bert"]}, "no masked language model of the kind None"),
        ({"model_type": "bert", "tie_word_embeddings": [1]}, "these are no settings of the kind 'bert'"),
        ({"model_type": "bert", "hidden_act": ["gelu"]}, "these are no settings of the kind 'bert'"),
        ({"model_type": "bert", "dtype": [1]}, "these are no settings of the kind 'bert'"),
        ({"model_type": "bert", "num_attention_heads": 0}, "these are no settings of the kind 'bert'"),
        ("nowhere/config.json", "nowhere/config.json: there is no such file"),
    ],
)
def test_what_cannot_be_trained_is_refused(given, wanted):
    with pytest.raises(UserError, match=wanted):
        padded_config(given, SEQ_LEN, TOKENIZER)


@pytest.mark.parametrize("text", ["{", "[]", NESTED], ids=["cut", "list", "nested"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json cannot be used"):
        padded_config(str(tmp_path), SEQ_LEN, TOKENIZER)


def test_a_folder_s_code_is_not_run(tmp_path):
    """Like NeoBERT: a configuration, and a model in files next to it, which `auto_map` names."""
    code = {name: f"model.NeoBERT{kind}" for name, kind in (("AutoConfig", "Config"), ("AutoModelForMaskedLM", "LM"))}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "neobert", "auto_map": code, **SMALL}))
    (tmp_path / "model.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    with pytest.raises(
        UserError, match=r"'neobert' brings code of its own \(auto_map\), which Maskwright does not run"
    ):
        padded_config(str(tmp_path), SEQ_LEN, TOKENIZER)
    with pytest.raises(UserError, match="transformers has no masked language model of the kind 'neobert'"):
        padded_config({"model_type": "neobert", **SMALL}, SEQ_LEN, TOKENIZER)
    assert not (tmp_path / "run").exists()


def test_positions_that_begin_after_the_padding_token_s_id():
    """RoBERTa and its kin: a row of 24 tokens takes the positions 1 to 24 of a table that begins with 0."""
    for room, longest in ((24, 23), (25, 24)):
        given = {"model_type": "xlm-roberta", "max_position_embeddings": room, **SMALL, **STILL}
        model = build({"arch": "auto", "config": padded_config(given, SEQ_LEN, TOKENIZER)}, seed=3)
        assert longest_text(model.model) == longest
        if longest < SEQ_LEN:
            with pytest.raises(
                UserError, match=r"of 23 tokens, less than the longest row \(24\); raise max_pos.* by 1"
            ):
                model.check_length(SEQ_LEN)
        else:
            model.check_length(SEQ_LEN)
            assert torch.isfinite(model(**stream(), seq_len=SEQ_LEN).loss)


def test_special_ids_are_those_of_the_data():
    found = padded_config({"model_type": "eurobert", **KINDS["eurobert"]}, SEQ_LEN, TOKENIZER)
    assert [found[f"{name}_token_id"] for name in ("bos", "eos", "mask", "pad")] == [2, 3, 4, 0]


def test_a_folder_is_read_and_its_vocabulary_is_the_data_s(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "electra", "vocab_size": 7, **KINDS["electra"]}))
    found = padded_config(str(tmp_path), SEQ_LEN, TOKENIZER)
    assert found["vocab_size"] == 101
    assert found == padded_config(str(tmp_path / "config.json"), SEQ_LEN, TOKENIZER)
    (tmp_path / "config.json").unlink()  # a checkpoint made later describes the model that is trained
    assert padded_config(str(tmp_path), SEQ_LEN, TOKENIZER) == found
