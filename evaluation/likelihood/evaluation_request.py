"""What an evaluation measures. Without torch, so that a request is checked before torch is imported."""

from dataclasses import dataclass
from typing import Literal

Form = Literal["original", "within-word"]
StrategyName = Literal["token", "whole_word", "span", "ngram"]


@dataclass(frozen=True)
class EvaluationRequest:
    """Models, data and settings of one evaluation.

    models: folders of models or runs. baseline: add a unigram model after them.
    data: the held-out data set. counts: the data set for token counts; default: `data`.
    rows, seq_len, mask_rate, strategy: see Masks. Default seq_len: 128, or the shortest limit of the models.
    likelihood: draws of the bound of masked models, see row_likelihoods; None: measure no likelihoods of all tokens.
    pairs: a file, see minimal_pairs.py. form: the score of masked models. limit: pairs per UID.
    """

    models: tuple[str, ...]
    baseline: bool = False
    data: str | None = None
    counts: str | None = None
    rows: int = 1000
    seq_len: int | None = None
    mask_rate: float = 0.15
    strategy: StrategyName = "token"
    likelihood: int | None = None
    pairs: str | None = None
    form: Form = "original"
    limit: int | None = None
