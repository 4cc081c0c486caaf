"""Models by their description, JSON values that a checkpoint stores: native encoders, and others of transformers.

transformers takes seconds to import, so only what needs it does that: native training does not.
"""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from data_prep.format import TokenizerInfo
from pretrain.config import Config
from pretrain.kernels import PLAIN, Operations
from pretrain.model.encoder import Encoder
from pretrain.model.flops import step_flops
from pretrain.model.head import LossOptions
from pretrain.model.shape import EncoderShape, encoder_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pretrain.model.padded import PaddedModel

Description = dict[str, Any]
Model = Union["Encoder", "PaddedModel"]


def describe(config: Config, tokenizer: TokenizerInfo) -> Description:
    """All that decides a model's parameters and what it computes.

    Raises:
        UserError: if there is no such model.
    """
    if config.model.arch != "auto":
        return asdict(encoder_shape(config, tokenizer))
    from pretrain.model.padded import padded_config

    assert config.model.config is not None  # which the configuration has checked
    return {"arch": "auto", "config": padded_config(config.model.config, config.longest_row, tokenizer)}


def in_full(description: Description) -> Description:
    """One that an earlier version recorded, with the fields that came later: by default they change nothing."""
    return description if description["arch"] == "auto" else asdict(EncoderShape(**description))


def build(
    description: Description, seed: int, options: LossOptions | None = None, operations: Operations = PLAIN
) -> Model:
    """The model, its weights drawn anew.

    Args:
        options: what is added to its loss.
        operations: of a native encoder, see pretrain.kernels.
    """
    if description["arch"] == "auto":
        from pretrain.model.padded import padded_model

        return padded_model(description["config"], options or LossOptions(), seed)
    encoder = Encoder(EncoderShape(**description), options, operations=operations)
    encoder.initialize(seed)
    return encoder


def choose_ways(model: Model, config: Config) -> None:
    """What changes how a native encoder computes, not what."""
    if isinstance(model, Encoder) and config.train.activation_checkpointing:
        model.checkpoint_layers()
    if isinstance(model, Encoder) and config.train.compile:
        model.compile_graph(shapes=len(config.stages))


def exported(state: dict[str, Tensor], description: Description) -> "PreTrainedModel":
    """A model of transformers with these weights, by native name, in evaluation mode."""
    if description["arch"] != "auto":
        from pretrain.model.families import hugging_face_model

        return hugging_face_model(state, EncoderShape(**description))
    from pretrain.model.padded import padded_model

    model = padded_model(description["config"], LossOptions(), seed=0)
    model.load_state_dict(state)
    return model.model.eval()


def flops_of(description: Description) -> Callable[[NDArray[np.int64], int], float] | None:
    """Operations of a step by its documents' lengths and its predictions (pretrain.model.flops); None if not known."""
    if description["arch"] == "auto":
        return None
    return functools.partial(step_flops, EncoderShape(**description))
