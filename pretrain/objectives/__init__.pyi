from .causal import CausalTokens as CausalTokens
from .diffusion import DiffusionTokens as DiffusionTokens
from .objective_mixture import Objective as Objective
from .objective_mixture import ObjectiveMixture as ObjectiveMixture
from .objective_mixture import loss_weights as loss_weights
from .objective_mixture import objective_of as objective_of
from .objective_mixture import predicted_share as predicted_share
from .objective_mixture import shares_at as shares_at
