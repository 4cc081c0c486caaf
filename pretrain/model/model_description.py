"""Model description in a checkpoint, as JSON values. Does not import torch, which takes seconds."""

from dataclasses import asdict
from typing import Any

from data_prep.format import TokenizerInfo
from pretrain.config import Config
from pretrain.model.encoder_shape import EncoderShape, encoder_shape

Description = dict[str, Any]


def describe(config: Config, tokenizer: TokenizerInfo) -> Description:
    """All that decides a model's parameters and what it computes.

    Raises:
        UserError: if there is no such model.
    """
    if config.model.arch != "auto":
        return asdict(encoder_shape(config, tokenizer))
    from pretrain.model.padded_model import padded_config

    assert config.model.config is not None  # which the configuration has checked
    return {"arch": "auto", "config": padded_config(config.model.config, config.longest_row, tokenizer)}


def in_full(description: Description) -> Description:
    """One that an earlier version recorded, with the fields that came later: by default they change nothing."""
    return description if description["arch"] == "auto" else asdict(EncoderShape(**description))
