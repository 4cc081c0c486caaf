"""The objective of a config."""

from pretrain.config import Config
from pretrain.masking import MaskedTokens, Vocabulary, largest_mask_rate
from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.diffusion import DiffusionTokens
from pretrain.objectives.masked_next import MaskedNextTokens
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
    made = [_named(kind.name, config, vocabulary, seed, purpose, defer) for kind in config.objective_kinds]
    if len(made) == 1:
        return made[0]
    views = [kind.view for kind in config.objective_kinds]
    ends = [one.ends for one in config.objectives]
    return ObjectiveMixture(made, views, ends, derive_key(seed, f"{purpose}-objectives"))


def _named(name: str, config: Config, vocabulary: Vocabulary, seed: int, purpose: str, defer: bool) -> Objective:
    if name == "clm":
        return CausalTokens(vocabulary)
    if name == "diffusion":
        return DiffusionTokens(vocabulary, config.masking.diffusion, seed, purpose)
    if name == "prefix":
        return PrefixTokens(vocabulary)
    if name == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(config.masking), seed, purpose)
    masks = MaskedTokens.of(config.masking, vocabulary, seed, purpose, defer)
    return MaskedNextTokens(masks) if name == "mntp" else masks
