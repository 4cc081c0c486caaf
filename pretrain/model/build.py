"""Models by their description, JSON values that a checkpoint stores: native encoders, and others of transformers."""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from data_prep.format import TokenizerInfo
from pretrain.config import Config
from pretrain.kernels import PLAIN, Operations
from pretrain.model.encoder import Encoder
from pretrain.model.families import hugging_face_model
from pretrain.model.flops import step_flops
from pretrain.model.head import LossOptions
from pretrain.model.padded import PaddedModel, padded_config, padded_model
from pretrain.model.shape import EncoderShape, encoder_shape

Description = dict[str, Any]
Model = Encoder | PaddedModel


def describe(config: Config, tokenizer: TokenizerInfo) -> Description:
    """All that decides a model's parameters and what it computes.

    Raises:
        UserError: if there is no such model.
    """
    if config.model.arch != "auto":
        return asdict(encoder_shape(config, tokenizer))
    assert config.model.config is not None  # which the configuration has checked
    return {"arch": "auto", "config": padded_config(config.model.config, config.longest_row, tokenizer)}


def build(
    description: Description, seed: int, options: LossOptions | None = None, operations: Operations = PLAIN
) -> Model:
    """The model, its weights drawn anew.

    Args:
        options: what is added to its loss.
        operations: of a native encoder, see pretrain.kernels.
    """
    if description["arch"] == "auto":
        return padded_model(description["config"], options or LossOptions(), seed)
    encoder = Encoder(EncoderShape(**description), options, operations=operations)
    encoder.initialize(seed)
    return encoder


def exported(state: dict[str, Tensor], description: Description) -> PreTrainedModel:
    """A model of transformers with these weights, by native name, in evaluation mode."""
    if description["arch"] != "auto":
        return hugging_face_model(state, EncoderShape(**description))
    model = padded_model(description["config"], LossOptions(), seed=0)
    model.load_state_dict(state)
    return model.model.eval()


def longest_document(description: Description) -> int | None:
    """Tokens of the longest document that the model takes; None where there is no limit."""
    if description["arch"] == "auto":
        return description["config"].get("max_position_embeddings")
    return int(description["max_positions"])


def flops_of(description: Description) -> Callable[[NDArray[np.int64], int], float] | None:
    """Operations of a step by its documents' lengths and its predictions (pretrain.model.flops); None if not known."""
    if description["arch"] == "auto":
        return None
    return functools.partial(step_flops, EncoderShape(**description))
