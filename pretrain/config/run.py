"""Config sections of a run folder: checkpoints, evaluations, metrics, guards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from data_prep.common.urls import is_url, redact
from pretrain.config.mlflow_address import address_problem
from pretrain.config.section import Section

_SHORTEST_SECONDS = 0.1


class RunConfig(Section):
    dir: Path = Field(description="the run folder: config, journal, status, checkpoints, exports")
    seed: int = Field(0, ge=0, lt=2**64, description="keys the order, the masks and the initial weights")
    resume: str = Field("auto", description="auto, required, never, or the path of a checkpoint folder")
    trust_checkpoint: bool = Field(False, description="start from a checkpoint of another run; trust whoever made it")
    allow_changes: bool = Field(False, description="resume although a setting that decides a step's result differs")
    stop_after: int | None = Field(
        None, ge=1, description="stop after this step, with a checkpoint; schedules still end at train.steps"
    )
    deterministic: bool = Field(False, description="on a GPU, only operations that give the same bits each time")

    @field_validator("dir", mode="before")
    @classmethod
    def _local(cls, place: object) -> object:
        if isinstance(place, str) and is_url(place):
            raise ValueError(f"{redact(place)} is a URL; name a local folder, and copies go to checkpoint.remote")
        return place


class CheckpointConfig(Section):
    every_steps: int = Field(1000, ge=1, description="steps between checkpoints")
    every_minutes: float | None = Field(None, gt=0, description="also after so many minutes without a checkpoint")
    asynchronous: bool = Field(True, description="write in the background, from a copy of the state in host memory")
    keep: int = Field(2, ge=1, description="newest checkpoints kept")
    keep_every: int | None = Field(None, ge=1, description="keep checkpoints at multiples of this for ever")
    at_steps: list[Annotated[int, Field(ge=1)]] = Field([], description="also after these steps, kept for ever")
    max_failures: int = Field(3, ge=1, description="saves in a row that may fail, as on a full disk")
    remote: str | None = Field(None, description="URL of a folder for copies, of this run alone: s3://bucket/run")

    @field_validator("remote")
    @classmethod
    def _place(cls, remote: str | None) -> str | None:
        if remote is None:
            return None
        if not is_url(remote) or "::" in remote:
            raise ValueError(f"{redact(remote)!r} is not a URL like s3://bucket/run or file:///backup/run")
        if redact(remote) != remote:
            raise ValueError("passwords and tokens do not belong in a config; put them into fsspec's configuration")
        return remote

    def problems(self) -> Iterator[str]:
        if self.keep_every and self.keep_every % self.every_steps:
            yield (
                f"checkpoint.keep_every ({self.keep_every}) must be a multiple of checkpoint.every_steps "
                f"({self.every_steps}), or there would be few checkpoints to keep"
            )


class EvalConfig(Section):
    every_steps: int = Field(1000, ge=1, description="steps between evaluations")
    rows: int = Field(1024, ge=1, description="rows of the held-out set used at each evaluation, at most")
    by_source: bool = Field(False, description="also the loss of each source of the held-out set, on as many rows")
    samples: int = Field(4, ge=0, le=64, description="held-out passages whose predictions are recorded each time")
    masks: Literal["own", "common"] = Field(
        "own", description="own: as masking says; common: 15% of the tokens, whatever masking says"
    )


class TrackConfig(Section):
    uri: str = Field("sqlite:///mlflow.db", description="address of MLflow; none: send nothing")
    experiment: str = Field("maskwright", description="MLflow experiment")
    parent: str | None = Field(
        None, min_length=1, max_length=250, description="the MLflow run that this one is part of: a name, or an id"
    )
    models: Literal["none", "last", "best", "all"] = Field(
        "none", description="checkpoints that MLflow gets as logged models"
    )
    system_seconds: float = Field(30.0, ge=0, description="between two samples of the load of each node; 0: none")

    @field_validator("system_seconds")
    @classmethod
    def _seldom(cls, seconds: float) -> float:
        if 0 < seconds < _SHORTEST_SECONDS:
            raise ValueError(f"{seconds:g} s is too short to measure a rate; write {_SHORTEST_SECONDS:g} or more, or 0")
        return seconds

    def problems(self) -> Iterator[str]:
        if self.models != "none" and self.uri == "none":
            yield (
                "models needs MLflow, but uri is `none`. Set models to none; `maskwright track models` logs them later."
            )

    @field_validator("uri")
    @classmethod
    def _address(cls, uri: str) -> str:
        if redact(uri) != uri:  # the config is copied into the run folder, checkpoints and MLflow
            raise ValueError(
                "user names, passwords and tokens do not belong in a config; set MLFLOW_TRACKING_URI instead"
            )
        if problem := address_problem(uri):
            raise ValueError(problem)
        return uri


class GuardConfig(Section):
    dry_run: bool = Field(True, description="a trial step, discarded, before the first one: memory, gradients")
    max_skipped: int = Field(5, ge=1, description="the run ends after this many steps in a row that are not finite")
    spike_threshold: float = Field(
        6.0, ge=0, description="deviations above the median of recent losses that make a spike; 0: do not look"
    )
    spike_window: int = Field(128, ge=8, description="recent losses that a new one is compared with")
    rollback: bool = Field(False, description="go back to the checkpoint before a spike, and leave its batches out")
    spike_steps: int = Field(10, ge=1, description="steps in a row above the threshold before a rollback")
    skip_steps: int = Field(100, ge=0, description="steps whose batches are left out after the spike's first one")
    max_rollbacks: int = Field(3, ge=1, description="rollbacks of a run; later spikes are reported, without another")
    hang_seconds: float = Field(
        600.0, ge=0, description="without progress for so long, the run ends; 0: never. Longer at the start"
    )
    slow_factor: float = Field(1.5, ge=0, description="a rank is slow at so many times the others' time; 0: off")
    replica_check_steps: int = Field(1000, ge=0, description="steps between comparisons of the ranks' weights; 0: off")
    data_wait: float = Field(0.1, ge=0, le=1, description="warn above this share of waiting for data; 0: never")

    def problems(self) -> Iterator[str]:
        if self.rollback and not self.spike_threshold:
            yield "rollback needs spikes to be looked for; set guard.spike_threshold above 0"
        if 0 < self.slow_factor <= 1:
            yield f"slow_factor {self.slow_factor:g} would make every rank slow; write more than 1, or 0 for none"
