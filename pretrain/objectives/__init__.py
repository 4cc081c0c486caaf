"""Training objectives: what the model sees of a row, which tokens it predicts, and from which states.

Each file defines objectives: how their batches are made, and an `ObjectiveKind` in the table `OBJECTIVES` of
pretrain/config. `objective_of` creates the `Objective` of a config, an `ObjectiveMixture` if there are several. The
masks of `mlm` and `mntp` are drawn in pretrain/masking.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
