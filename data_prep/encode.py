"""Texts to ids: one encoder for one sample; see data_prep.encoding."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from data_prep.encoding import Encoder, Encoders
from data_prep.format import TokenizerInfo


def choose_encoder(tokenizer: Tokenizer, info: TokenizerInfo, sample: Sequence[str]) -> tuple[Encoder, str]:
    """As Encoders.choose, for a process with a single task."""
    return Encoders(tokenizer, info).choose(sample)
