from .demo_run import run_demo as run_demo
from .local_launch import gpu_count as gpu_count
from .local_launch import is_completed as is_completed
from .local_launch import rank_environment as rank_environment
from .local_launch import supervise as supervise
from .local_launch import train_locally as train_locally
from .start_ranks import command_of as command_of
from .stop_signals import on_stop_signals as on_stop_signals
