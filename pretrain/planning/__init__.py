"""Plan a run: memory and speed estimates, and the preflight checks that refuse a bad start.

`Planner` plans a config. `check_start` makes all checks before a run starts, and `CHECKS` lists them. `check_tracking`
checks the address of MLflow. `measured_rate` reads a run's speed, and `other_device` compares its GPU. `ScalingRequest`
predicts steps on clusters of several sizes. `micro_batch_sizes` lists the valid sizes of a micro-batch, and
`with_micro_batch` sets one. `choose_first_config` chooses a config for a text and a machine. `host_advice` says
whether a GPU would wait for the host.
"""

from pretrain.planning.cluster_speed import Scaled, ScalingRequest
from pretrain.planning.first_config import FirstConfig, Machine, choose_first_config, gpu_tflops
from pretrain.planning.host_time import host_advice
from pretrain.planning.preflight import CHECKS, check_start, check_tracking, print_warnings
from pretrain.planning.run_plan import Planner, RunPlan, micro_batch_sizes, with_micro_batch
from pretrain.planning.run_warnings import run_warnings
from pretrain.planning.speed import Rate, measured_rate, other_device
from pretrain.planning.training_memory import GpuMemory
