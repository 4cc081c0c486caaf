"""Native encoders in tests."""

from transformers import PreTrainedModel

from pretrain.model.encoder import Encoder
from pretrain.model.families import from_hugging_face, shape_of


def native_encoder(model: PreTrainedModel) -> Encoder:
    """A native encoder with the weights of a Hugging Face model."""
    encoder = Encoder(shape_of(model.config))
    encoder.load_state_dict(from_hugging_face(model.state_dict(), encoder.shape))
    encoder.neutralize_padding()
    return encoder
