from .objective import Objective as Objective
from .objective import objective_of as objective_of
