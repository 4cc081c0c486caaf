from .choose_objective import objective_of as objective_of
from .choose_objective import rate_at as rate_at
from .choose_objective import strategy_of as strategy_of
