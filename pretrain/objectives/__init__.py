"""Training objectives: what the model sees of a row, which tokens it predicts, and from which states.

`objective_of` creates the `Objective` of a config: masked tokens, the next token, or the repair of a wrong token. The
masks themselves are drawn in pretrain/masking. What follows from the name of an objective alone, such as what a
position attends to, is its ObjectiveKind in pretrain/config.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
