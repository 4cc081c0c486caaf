"""Small models of several kinds with tokenizers, and text to evaluate them."""

import json
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from data_prep.jobs import PreparationSettings
from data_prep.tokenizer import train_tokenizer
from tests.support.prep import prepare_files
from tests.support.text_data import sentences

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.25,  # so much that what is predicted depends on the context
}
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
    sizes = SMALL | {"vocab_size": vocab_size, "pad_token_id": pad}
    if name == "bert":
        return BertForMaskedLM(BertConfig(**sizes))
    if name == "roberta":
        return RobertaForMaskedLM(RobertaConfig(**sizes | {"max_position_embeddings": 41 + pad}, type_vocab_size=1))
    if name == "modernbert":
        return ModernBertForMaskedLM(ModernBertConfig(**sizes | {"num_hidden_layers": 4}, **_MODERN))
    if name == "eurobert":
        return EuroBertForMaskedLM(EuroBertConfig(**sizes, num_key_value_heads=1, mask_token_id=mask))
    if name == "esm":
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-5}
        form = {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False}
        return EsmForMaskedLM(EsmConfig(**sizes, **still, **form, mask_token_id=mask))
    if name == "causal modernbert":
        values = sizes | {"num_hidden_layers": 4} | _MODERN | dict.fromkeys(_NONE, 2)
        return ModernBertDecoderForCausalLM(ModernBertDecoderConfig(**values))
    if name == "causal bert":
        return BertLMHeadModel(BertConfig(**sizes, is_decoder=True))
    if name == "distilbert":
        names = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
        return DistilBertForMaskedLM(DistilBertConfig(**names, **_only(sizes)))
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=40, **_only(sizes)))


def _only(sizes: dict[str, float]) -> dict[str, float]:
    return {name: sizes[name] for name in ("vocab_size", "pad_token_id", "initializer_range")}


_NONE = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_MODERN: dict[str, int | None] = {"local_attention": 8, **dict.fromkeys(_NONE)}
