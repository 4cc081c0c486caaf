"""Build models from descriptions, JSON values stored in checkpoints: native encoders and models of transformers.

transformers takes seconds to import, so only code that needs it imports it. Native training does not.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pretrain.config import Config
from pretrain.kernels import PLAIN, Operations
from pretrain.model.encoder import Encoder
from pretrain.model.head import LossOptions
from pretrain.model.model_costs import step_flops
from pretrain.model.model_description import Description, EncoderShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pretrain.model.padded_model import PaddedModel

Model = Union["Encoder", "PaddedModel"]


def build(
    description: Description, seed: int, options: LossOptions | None = None, operations: Operations = PLAIN
) -> Model:
    """Build the model with new random weights.

    Args:
        options: what is added to its loss.
        operations: of a native encoder, see pretrain.kernels.
    """
    if description["arch"] == "auto":
        from pretrain.model.padded_model import padded_model

        return padded_model(description["config"], options or LossOptions(), seed)
    encoder = Encoder(EncoderShape(**description), options, operations=operations)
    encoder.initialize(seed)
    return encoder


def set_compute_options(model: Model, config: Config) -> None:
    """Set options that change how a native encoder computes, but not its results."""
    if isinstance(model, Encoder) and config.train.activation_checkpointing:
        model.checkpoint_layers()
    if isinstance(model, Encoder) and config.train.compile:
        model.compile_graph(shapes=len(config.stages))


def exported(state: dict[str, Tensor], description: Description) -> "PreTrainedModel":
    """A model of transformers with these weights, by native name, in evaluation mode."""
    if description["arch"] != "auto":
        from pretrain.model.families import hugging_face_model

        return hugging_face_model(state, EncoderShape(**description))
    from pretrain.model.padded_model import padded_model

    model = padded_model(description["config"], LossOptions(), seed=0)
    model.load_state_dict(state)
    return model.model.eval()


def flops_of(description: Description) -> Callable[[NDArray[np.int64], int], float] | None:
    """FLOPs of a step by the lengths of its documents and its predictions; None if not known."""
    if description["arch"] == "auto":
        return None
    return functools.partial(step_flops, EncoderShape(**description))
