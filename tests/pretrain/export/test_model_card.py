"""What a model card says of layers that pretraining did not train."""

from dataclasses import asdict

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pretrain.export.model_card import new_layers
from pretrain.model import EncoderShape, build, exported

SIZE = {"vocab_size": 60, "layers": 1, "hidden": 8, "heads": 1, "intermediate": 8, "max_positions": 16, "pad_id": 0}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 60}
MODELS = {
    **{arch: asdict(EncoderShape(**SIZE, arch=arch)) for arch in ("bert", "roberta", "modernbert")},
    "electra": {"arch": "auto", "config": SMALL | {"model_type": "electra", "embedding_size": 8, "pad_token_id": 0}},
    "distilbert": {"arch": "auto", "config": {"model_type": "distilbert", "dim": 8, "n_layers": 1, "n_heads": 1,
                                              "hidden_dim": 8, "vocab_size": 60, "pad_token_id": 0}},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_new_layers_are_those_that_each_load_draws_anew(name, tmp_path):
    """With them saved, a classifier predicts after a reload what it predicted before, and without them it does not."""
    model = exported(build(MODELS[name], seed=3).state_dict(), MODELS[name])
    model.save_pretrained(tmp_path)
    layers = new_layers(model)
    first, second = loaded(tmp_path, seed=1), loaded(tmp_path, seed=2)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert not torch.equal(first(ids).logits, second(ids).logits)
        for layer in layers:
            saved = {key: value for key, value in first.state_dict().items() if f".{layer}." in f".{key}"}
            assert saved, layer
            second.load_state_dict(saved, strict=False)
        assert torch.equal(first(ids).logits, second(ids).logits)
    assert layers == {"bert": ["classifier", "pooler"], "distilbert": ["classifier", "pre_classifier"]}.get(
        name, ["classifier"]
    )


def loaded(folder, seed):
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).eval()
