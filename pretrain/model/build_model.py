"""Build models from descriptions, JSON values stored in checkpoints: native encoders and models of transformers.

transformers takes seconds to import, so only code that needs it imports it. Native training does not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Union

from torch import Tensor, nn

from pretrain.config import Config
from pretrain.kernels import FastPath, operations, use_version
from pretrain.model.encoder import Encoder
from pretrain.model.model_description import Description, EncoderShape
from pretrain.model.pretrained_init import initial_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pretrain.model.padded_model import PaddedModel

Model = Union["Encoder", "PaddedModel"]


def build(description: Description, seed: int, z_loss: float = 0.0) -> Model:
    """Build the model with new random weights. z_loss: see pretrain.model.head.VocabularyLoss."""
    if description["arch"] == "auto":
        from pretrain.model.padded_model import padded_model

        return padded_model(description["config"], seed, z_loss)
    encoder = Encoder(EncoderShape(**description), z_loss)
    encoder.initialize(seed)
    return encoder


def build_for_training(
    config: Config,
    description: Description,
    tokenizer: Path | None,
    init: Path | None,
    say: Callable[[str], None] = lambda line: None,
) -> Model:
    """Build the model of a run, with its ways to compute.

    Args:
        tokenizer: folder of the data's tokenizer.
        init: a Hugging Face folder with the first weights; they are random if it is None. say: see initial_state.

    Raises UserError if the weights do not fit, rows are too long for the model, or there is no GPU for the kernels.
    """
    train = config.train
    model = build(description, config.run.seed, train.z_loss)
    if not isinstance(model, Encoder):
        model.check_length(config.longest_row)
        return model
    if init:
        start = config.model.init_vocabulary, config.model.init_size, config.run.seed
        model.load_state_dict(initial_state(init, model.shape, tokenizer, say, *start))
        model.reset_padding_rows()
    if train.activation_checkpointing:
        model.checkpoint_layers()
    use_path(model, config, FastPath.of(config))
    return model


def use_path(model: nn.Module, config: Config, path: FastPath) -> None:
    """From now on, compute a native encoder in this way.

    Raises UserError if there is no GPU for the kernels, or no package for the version of flash attention.
    """
    if isinstance(model, Encoder):
        use_version(path.flash)
        # One shape more: a comparison with the plain step may need fewer rows. Each objective is evaluated alone.
        shapes = len(config.stages) * len(config.objective_kinds) + 1
        model.use(operations(path.fused), shapes if path.compiled else 0)


def exported(state: dict[str, Tensor], description: Description) -> "PreTrainedModel":
    """A model of transformers with these weights, by native name, in evaluation mode."""
    if description["arch"] != "auto":
        from pretrain.model.families import hugging_face_model

        return hugging_face_model(state, EncoderShape(**description))
    from pretrain.model.padded_model import padded_model

    model = padded_model(description["config"], seed=0)
    model.load_state_dict(state)
    return model.model.eval()
