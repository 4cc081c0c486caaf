from .gpus import gpu_count as gpu_count
from .local_launch import train_locally as train_locally
from .start_ranks import rank_variables as rank_variables
from .stop_signals import StopSignals as StopSignals
from .stop_signals import end_on_stop_signals as end_on_stop_signals
from .stop_signals import on_stop_signals as on_stop_signals
