"""Where a run lives, and what it leaves behind: checkpoints, evaluations, metrics."""

from pathlib import Path

from pydantic import Field, field_validator

from pretrain.config.section import Section
from pretrain.redact import redact


class RunConfig(Section):
    dir: Path = Field(description="the run folder: config, journal, status, checkpoints, exports")
    seed: int = Field(0, ge=0, lt=2**64, description="keys the order, the masks and the initial weights")
    resume: str = Field("auto", description="auto, required, never, or the path of a checkpoint folder")
    trust_checkpoint: bool = Field(
        False, description="load a checkpoint of another run, which can run its maker's code"
    )
    allow_changes: bool = Field(False, description="resume although a setting that decides a step's result differs")
    deterministic: bool = Field(False, description="on a GPU, only operations that give the same bits each time")


class CheckpointConfig(Section):
    every_steps: int = Field(1000, ge=1)
    keep: int = Field(2, ge=1, description="newest checkpoints kept")


class EvalConfig(Section):
    every_steps: int = Field(1000, ge=1)
    rows: int = Field(1024, ge=1, description="rows of the held-out set used at each evaluation, at most")


class TrackConfig(Section):
    uri: str = "sqlite:///mlflow.db"
    experiment: str = "maskwright"

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str) -> str:
        if redact(uri) != uri:  # the config is copied into the run folder, checkpoints and MLflow
            raise ValueError(
                "user names, passwords and tokens do not belong in a config; set MLFLOW_TRACKING_URI instead"
            )
        return uri
