"""Configuration of a run: one YAML file and `section.key=value` overrides. Every key is checked.

`load_config` reads a `Config`, and `save_config` writes one. The other classes are its sections. `address_problem`
checks an address of MLflow. No module here imports torch, so the command line and the launchers check a config quickly.
"""

from pretrain.config.cluster import ClusterConfig, ContainerConfig
from pretrain.config.config_files import (
    as_yaml,
    flat,
    load_config,
    merged,
    on_one_line,
    read_yaml,
    save_config,
)
from pretrain.config.data import DataConfig, DiffusionConfig, MaskingConfig, RateMode, RateSchedule, SelectionConfig
from pretrain.config.error_text import percent, value_refusal
from pretrain.config.json_schema import json_schema
from pretrain.config.mlflow_address import DEFAULT_ADDRESS, OFFLINE, address_problem, sqlite_address, sqlite_path
from pretrain.config.model import ROTARY_BASES
from pretrain.config.objective import OBJECTIVES, ObjectiveConfig, ObjectiveKind, ShareSchedule, View
from pretrain.config.run import CheckpointConfig, GuardConfig, TrackConfig
from pretrain.config.schema import Config, Phase
from pretrain.config.training import OptimConfig, ProfileConfig, ScheduleConfig, StageSettings
