"""Training objectives: what the model sees of a row, which tokens it predicts, and from which states.

Each file defines objectives: how their batches are made, and an `ObjectiveKind` in the table `OBJECTIVES` of
pretrain/config. `objective_of` creates the `Objective` of a config, an `ObjectiveMixture` if there are several. The
masks of `mlm` and `mntp` are drawn in pretrain/masking.
"""

from pretrain.objectives.causal import CausalTokens
from pretrain.objectives.diffusion import DiffusionTokens
from pretrain.objectives.objective_mixture import (
    Objective,
    ObjectiveMixture,
    loss_weights,
    objective_of,
    predicted_share,
    shares_at,
)
