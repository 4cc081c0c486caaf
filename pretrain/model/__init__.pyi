from .build_model import Model as Model
from .build_model import build as build
from .encoder import Encoder as Encoder
from .model_costs import Sizes as Sizes
from .model_description import EncoderShape as EncoderShape
from .model_description import describe as describe
from .model_description import digest_of as digest_of
from .padded_model import longest_text as longest_text
