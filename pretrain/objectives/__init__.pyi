from .objectives import CausalTokens as CausalTokens
from .objectives import objective_of as objective_of
from .objectives import rate_at as rate_at
from .objectives import strategy_of as strategy_of
