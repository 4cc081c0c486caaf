"""The objective of a config."""

from pretrain.config import Config, MaskingConfig, ObjectiveKind
from pretrain.masking import MaskedTokens, Vocabulary, largest_mask_rate
from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.diffusion import DiffusionTokens
from pretrain.objectives.objective_mixture import Objective, ObjectiveMixture
from pretrain.objectives.prefix import PrefixTokens
from pretrain.objectives.repair import RepairObjective
from pretrain.philox import derive_key


def objective_of(
    config: Config,
    vocabulary: Vocabulary,
    seed: int,
    purpose: str,
    phase: int = 0,
    masking: MaskingConfig | None = None,
) -> Objective:
    """Create the objective of a phase of a run; see MaskedTokens for seed and purpose.

    It has all objectives of the run, so that they have the same numbers in each phase; some may have no share in it.

    Args:
        masking: instead of the settings of the phase.

    Raises:
        UserError: if a required file is missing, damaged, or made with another tokenizer.
    """
    of_phase, kinds = config.run_phases[phase].config, config.objective_kinds
    masking = masking or of_phase.masking
    made = [_of_kind(kind, masking, vocabulary, seed, purpose) for kind in kinds]
    if len(made) == 1:
        return made[0]
    ends: dict[str, tuple[float, float]] = {one.kind: one.ends for one in of_phase.objectives}
    shares = [ends.get(kind.name, (0.0, 0.0)) for kind in kinds]
    return ObjectiveMixture(made, [kind.view for kind in kinds], shares, derive_key(seed, f"{purpose}-objectives"))


def _of_kind(kind: ObjectiveKind, masking: MaskingConfig, vocabulary: Vocabulary, seed: int, purpose: str) -> Objective:
    if kind.draws_masks:
        return MaskedTokens.of(masking, vocabulary, seed, purpose, kind.lag)
    if kind.name == "diffusion":
        return DiffusionTokens(vocabulary, masking.diffusion, seed, purpose)
    if kind.name == "repair":
        return RepairObjective(vocabulary, largest_mask_rate(masking), seed, purpose)
    return PrefixTokens(vocabulary) if kind.name == "prefix" else CausalTokens(vocabulary)
