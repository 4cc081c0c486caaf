"""The trial before the first step: the choice of kernels and micro-batch, and a step that changes nothing.

`choose_kernels` compares faster kernels with the plain step. `choose_micro_batch` takes the largest micro-batch that
fits by its plan, and `fit_micro_batch` one that fits into memory. `Trial.run_step` makes the trial step.
"""

from pretrain.trial.kernel_choice import choose_kernels, installed_flash_attention
from pretrain.trial.micro_batch import choose_micro_batch, fit_micro_batch, smallest_gpu
from pretrain.trial.trial_step import Trial
