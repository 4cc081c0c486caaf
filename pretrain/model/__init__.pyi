from .activation_memory import Sizes as Sizes
from .build_model import Model as Model
from .build_model import build as build
from .encoder import Encoder as Encoder
from .encoder_shape import EncoderShape as EncoderShape
from .model_description import describe as describe
from .padded_model import longest_text as longest_text
from .weights_file import digest_of as digest_of
