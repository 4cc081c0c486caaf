"""Configuration of a run: `Config` and its sections. Every key is checked.

`pretrain.config_files` reads and writes them. `OBJECTIVES` describes the objectives, and `View` what a position sees.
`json_schema` is a schema for editors. `address_problem` checks an address of MLflow. No module here imports torch, so
the command line and the launchers check a config quickly.
"""

from pretrain.config.cluster import ClusterConfig
from pretrain.config.data import DataConfig, DiffusionConfig, MaskingConfig, StrategyName
from pretrain.config.json_schema import json_schema
from pretrain.config.mlflow_address import OFFLINE, address_problem
from pretrain.config.objective import OBJECTIVES, ObjectiveKind, View
from pretrain.config.run import CheckpointConfig, GuardConfig, TrackConfig
from pretrain.config.schema import Config, Phase
from pretrain.config.section import SettingSchedule
from pretrain.config.training import OptimConfig, ScheduleConfig, StageSettings
