"""A tiny model with a tokenizer of a few words, and files, for fine-tuning."""

import sqlite3
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from pretrain.export import load_tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT_WORDS = ["the", "ship", "##s", "sail", "##ed", "old", "new", "red", "good", "bad", "where", "is", "in", "york"]
WORDS = [*SPECIALS, *TEXT_WORDS]


def tiny_tokenizer(folder: Path) -> Any:
    """A WordPiece tokenizer of WORDS, saved in `folder`, for texts of up to 32 tokens."""
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name[1:-1].lower()}_token": name for name in SPECIALS}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )
    wrapped.save_pretrained(folder)
    return load_tokenizer(folder)


def tiny_model(folder: Path) -> Path:
    """A BERT of 2 layers of 32, with dropout, and its tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, hidden_dropout_prob=0.1, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def write(path: Path, text: str) -> str:
    """The path of a file with this text."""
    path.write_text(text, encoding="utf-8")
    return str(path)


def tracked_params(database: Path) -> dict[str, dict[str, str]]:
    """The parameters of the runs in a database of MLflow, by name."""
    opened = sqlite3.connect(database)
    params = "select key, value from params where run_uuid = ?"
    runs = opened.execute("select name, run_uuid from runs").fetchall()
    return {name: dict(opened.execute(params, (run,))) for name, run in runs}
