"""Objectives: predict masked tokens, the next token, or the repair of a wrong token."""

import numpy as np

from pretrain.config import Config
from pretrain.masking.mask_rate import largest_mask_rate
from pretrain.masking.masked_tokens import DeferredMasks, MaskedTokens
from pretrain.masking.rows import IGNORED, Masked, Objective, Rows, TokenFlag, Vocabulary, compact
from pretrain.masking.selection import count, of_columns, select_tokens
from pretrain.philox import derive_key


class CausalTokens:
    """Causal objective: the state of the previous slot predicts each ordinary token; no token is masked.

    A document's first token is predicted from its [CLS], so no prediction crosses documents. Attention must be causal
    (EncoderShape.causal); otherwise a prediction could see its label.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    flags = 0

    def slots(self, seq_len: int) -> int:
        """The number of ordinary tokens in a full row of one document."""
        return seq_len - 2

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Label all ordinary tokens; `rate` is not used."""
        tokens = rows.tokens.reshape(-1)
        predicted, used = compact(self.vocabulary.is_ordinary[rows.tokens], self.slots(rows.tokens.shape[1]))
        labels = np.where(used, tokens[predicted], IGNORED)
        # A row begins with [CLS] or padding, so the slot before an ordinary token is in the same document.
        return Masked(tokens, (predicted - used).reshape(-1), labels.reshape(-1))


class RepairObjective:
    """The objective of cloze repair.

    Args:
        vocabulary: the tokenizer's ids.
        rate: the largest share of a full row's ordinary tokens to predict; it sizes the arrays.
        seed: keys every draw.
        purpose: draws of two purposes ("train", "valid") are independent.
    """

    flags = TokenFlag.TARGET

    def __init__(self, vocabulary: Vocabulary, rate: float, seed: int, purpose: str):
        self.vocabulary, self._rate = vocabulary, rate
        self.key = derive_key(seed, f"{purpose}-repairs")

    def slots(self, seq_len: int) -> int:
        """Places for predictions in a full row with one [CLS] and one [SEP]."""
        return max(1, int(count(self._rate, seq_len - 2)))

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask and predict all targets; with more targets than places, predict a uniformly random part.

        Targets that are special tokens, such as [UNK], are masked but not predicted.
        """
        tokens, seq_len, targets = rows.tokens, rows.tokens.shape[1], rows.targets
        wanted = targets & self.vocabulary.is_ordinary[tokens]
        counts = np.minimum(np.count_nonzero(wanted, axis=1), max(1, int(count(rate, seq_len - 2))))
        predicted = select_tokens(wanted, counts, of_columns(self.key, rows.row_ids, seq_len))
        positions, used = compact(predicted, self.slots(seq_len))
        labels = np.where(used, tokens.reshape(-1)[positions], IGNORED)
        seen = np.where(targets, self.vocabulary.mask, tokens)
        return Masked(seen.reshape(-1), positions.reshape(-1), labels.reshape(-1))


def objective_of(config: Config, vocabulary: Vocabulary, seed: int, purpose: str, defer: bool = False) -> Objective:
    """Create the objective of a configuration; see MaskedTokens for seed and purpose.

    Args:
        defer: leave masking to the device (`device_masking`) if masking.device is gpu.

    Raises:
        UserError: if a required file is missing, damaged, or made with another tokenizer.
    """
    if config.causal:
        return CausalTokens(vocabulary)
    if config.objective == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(config.masking), seed, purpose)
    masked = DeferredMasks if defer and config.masking.device == "gpu" else MaskedTokens
    return masked.of(config.masking, vocabulary, seed, purpose)
