from .kernel_choice import choose_kernels as choose_kernels
from .micro_batch import choose_micro_batch as choose_micro_batch
from .micro_batch import fit_micro_batch as fit_micro_batch
from .micro_batch import smallest_gpu as smallest_gpu
from .trial_step import Trial as Trial
