"""Configuration of a run: one YAML file and `section.key=value` overrides. Every key is checked.

No module here imports torch, so the command line and the launchers check a config quickly.
"""

from pretrain.config.cluster import ClusterConfig, ContainerConfig
from pretrain.config.config_files import flat, load_config, on_one_line, read_yaml, save_config
from pretrain.config.data import DataConfig
from pretrain.config.guard import GuardConfig
from pretrain.config.masking import MaskingConfig, StrategyName
from pretrain.config.model import PRESETS, SizeConfig
from pretrain.config.schema import Config
from pretrain.config.training import OptimConfig, ScheduleConfig

__all__ = [
    "PRESETS",
    "ClusterConfig",
    "Config",
    "ContainerConfig",
    "DataConfig",
    "GuardConfig",
    "MaskingConfig",
    "OptimConfig",
    "ScheduleConfig",
    "SizeConfig",
    "StrategyName",
    "flat",
    "load_config",
    "on_one_line",
    "read_yaml",
    "save_config",
]
