from .alignment import LONG_WORD as LONG_WORD
from .choose_encoder import Encoders as Encoders
from .hf_tokenizer import describe as describe
from .hf_tokenizer import fetch as fetch
from .hf_tokenizer import load as load
from .token_text import Spelling as Spelling
from .token_text import open_spelling as open_spelling
from .token_text import printable as printable
