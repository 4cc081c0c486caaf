"""What an objective is, and the objective of a config."""

from typing import Protocol

from pretrain.config import Config
from pretrain.masking import Masked, MaskedTokens, Rows, Vocabulary, largest_mask_rate
from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.repair import RepairObjective


class Objective(Protocol):
    """A training objective: labels of a row as a pure function of the row and the rate."""

    @property
    def flags(self) -> int:
        """Flag bits of tokens that the objective needs."""
        ...

    def slots(self, seq_len: int) -> int:
        """Number of places for predictions in a row of `seq_len` slots."""
        ...

    def __call__(self, rows: Rows, rate: float) -> Masked:
        """Mask rows; `rate` is the share of ordinary tokens to predict."""
        ...


def objective_of(config: Config, vocabulary: Vocabulary, seed: int, purpose: str, defer: bool = False) -> Objective:
    """Create the objective of a configuration; see MaskedTokens for seed and purpose.

    Args:
        defer: leave masking to the device (`device_masking`) if masking.device is gpu.

    Raises:
        UserError: if a required file is missing, damaged, or made with another tokenizer.
    """
    if config.objective == "clm":
        return CausalTokens(vocabulary)
    if config.objective == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(config.masking), seed, purpose)
    return MaskedTokens.of(config.masking, vocabulary, seed, purpose, defer)
