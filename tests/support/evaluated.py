"""Small models of several kinds with tokenizers, and text to evaluate them."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from data_prep.jobs import PreparationSettings
from data_prep.tokenizer import train_tokenizer
from tests.support.prep import prepare_files
from tests.support.text_data import sentences

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SMALL |= {"max_position_embeddings": 40, "initializer_range": 0.25}  # what is predicted depends on the context
KINDS = ("wordpiece", "bpe")
RARE = ["unfollowable sailorships", "Painterly doctoring of silverish rivers", "a b c"]


def corpora(folder: Path) -> dict[str, Path]:
    """For each kind of tokenizer a folder with tokenizer, train and valid in it, of the same text."""
    texts = sentences(200) + RARE
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for kind in KINDS:
        train_tokenizer(sentences(200), kind, {"wordpiece": 90, "bpe": 300}[kind], folder / kind / "tokenizer")
        settings = PreparationSettings(valid_fraction=0.3)
        prepare_files([folder / "text.jsonl"], folder / kind / "tokenizer", folder / kind / "data", settings=settings)
    return {kind: folder / kind for kind in KINDS}


def save_model(name: str, corpus: Path, out: Path, seed: int = 0) -> Path:
    """A model of the kind `name`, its weights drawn at random, with the corpus's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(str(corpus / "tokenizer"))
    torch.manual_seed(seed)
    model = _model(name, len(tokenizer), tokenizer.pad_token_id, tokenizer.mask_token_id)
    with torch.no_grad():  # biases away from 0, and norms from 1
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _model(name: str, vocab_size: int, pad: int, mask: int) -> PreTrainedModel:
    settings: dict[str, dict[str, Any]] = {
        "bert": {},
        "roberta": {"max_position_embeddings": 41 + pad, "type_vocab_size": 1},
        "modernbert": {"num_hidden_layers": 4} | _MODERN,
        "eurobert": {"num_key_value_heads": 1, "mask_token_id": mask},
        "esm": _ESM | {"mask_token_id": mask},
        "distilbert": {"hidden_dim": 64, "max_position_embeddings": 512},
        "causal modernbert": {"num_hidden_layers": 4} | _MODERN | dict.fromkeys(_NONE, 2),
        "causal bert": {"is_decoder": True},
        "gpt2": {},
    }
    kind = {"causal modernbert": "modernbert-decoder", "causal bert": "bert"}.get(name, name)
    config = AutoConfig.for_model(kind, **SMALL | {"vocab_size": vocab_size, "pad_token_id": pad} | settings[name])
    return (AutoModelForCausalLM if "causal" in name or name == "gpt2" else AutoModelForMaskedLM).from_config(config)


_NONE = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_MODERN: dict[str, int | None] = {"local_attention": 8, **dict.fromkeys(_NONE)}
_ESM: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5}
_ESM |= {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False}
