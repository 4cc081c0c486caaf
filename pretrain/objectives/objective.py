"""The objective of a config."""

from pretrain.config import Config, ObjectiveKind
from pretrain.masking import MaskedTokens, Vocabulary, largest_mask_rate
from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.diffusion import DiffusionTokens
from pretrain.objectives.objective_mixture import Objective, ObjectiveMixture
from pretrain.objectives.prefix import PrefixTokens
from pretrain.objectives.repair import RepairObjective
from pretrain.philox import derive_key


def objective_of(config: Config, vocabulary: Vocabulary, seed: int, purpose: str, defer: bool = False) -> Objective:
    """Create the objective of a configuration; see MaskedTokens for seed and purpose.

    Args:
        defer: leave masking to the device (`device_masking`) if masking.device is gpu.

    Raises:
        UserError: if a required file is missing, damaged, or made with another tokenizer.
    """
    made = [_of_kind(kind, config, vocabulary, seed, purpose, defer) for kind in config.objective_kinds]
    if len(made) == 1:
        return made[0]
    views = [kind.view for kind in config.objective_kinds]
    ends = [one.ends for one in config.objectives]
    return ObjectiveMixture(made, views, ends, derive_key(seed, f"{purpose}-objectives"))


def _of_kind(
    kind: ObjectiveKind, config: Config, vocabulary: Vocabulary, seed: int, purpose: str, defer: bool
) -> Objective:
    if kind.draws_masks:
        return MaskedTokens.of(config.masking, vocabulary, seed, purpose, defer, kind.lag)
    if kind.name == "diffusion":
        return DiffusionTokens(vocabulary, config.masking.diffusion, seed, purpose)
    if kind.name == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(config.masking), seed, purpose)
    return PrefixTokens(vocabulary) if kind.name == "prefix" else CausalTokens(vocabulary)
