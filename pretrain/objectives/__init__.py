"""Training objectives: what the model sees of a row, which tokens it predicts, and from which states.

`objective_of` creates the `Objective` of a config, an `ObjectiveMixture` if there are several. The masks of `mlm` and
`mntp` are drawn in pretrain/masking. What follows from the name of an objective alone, such as what a position attends
to, is its ObjectiveKind in pretrain/config.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
