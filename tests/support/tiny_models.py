"""Tiny language models of transformers in folders, with the tokenizer of tests.support.wordpiece_set."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, PreTrainedTokenizerFast

from tests.support.wordpiece_set import WORDS

SPECIALS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def tiny_model(
    folder: Path, tokenizer: Path, causal: bool = False, layers: int = 2, positions: int = 48, mask: str = "[MASK]"
) -> Path:
    """A BERT that was never trained, its weights large enough for it to prefer some tokens, and a tokenizer.json."""
    torch.manual_seed(layers)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": len(WORDS), "num_hidden_layers": layers, "max_position_embeddings": positions}
    config = BertConfig(is_decoder=causal, initializer_range=0.5, pad_token_id=0, **sizes)
    (BertLMHeadModel if causal else BertForMaskedLM)(config).save_pretrained(folder)
    loaded = Tokenizer.from_file(str(tokenizer))
    PreTrainedTokenizerFast(tokenizer_object=loaded, mask_token=mask, **SPECIALS).save_pretrained(folder)
    return folder
