from .deepspeed_import import import_deepspeed as import_deepspeed
from .engine import Engine as Engine
from .engine import init_distributed as init_distributed
from .engine import make_deterministic as make_deterministic
from .engine import slow_precision as slow_precision
from .gradient_buckets import bucket_size as bucket_size
from .gradient_buckets import uses_flat_gradients as uses_flat_gradients
from .step_sums import StepSums as StepSums
