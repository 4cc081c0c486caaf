from .depth_slices import depth_slices as depth_slices
from .lr_schedule import learning_rate as learning_rate
from .lr_schedule import lr_factor as lr_factor
from .optimizers import build_optimizer as build_optimizer
from .parameter_fragments import Piece as Piece
from .parameter_groups import described as described
from .parameter_groups import optimizer_order as optimizer_order
from .sharded_optimizer import AVERAGE as AVERAGE
