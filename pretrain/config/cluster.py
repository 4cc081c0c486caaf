"""Config section `cluster`: nodes, queue and environment for `maskwright launch slurm`. No key changes results."""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, field_validator

from data_prep.common.urls import assigned_secret, is_secret
from pretrain.config.section import Section

_OWN_OPTIONS = (
    ("array", "run.seed and run.dir for each job"),
    ("chdir", "the folder you submit from"),
    ("comment", "nothing: other commands find the run by it"),
    ("cpus-per-task", "cluster.cpus_per_process"),
    ("job-name", "cluster.job_name"),
    ("nodes", "cluster.nodes"),
    ("ntasks-per-node", "cluster.gpus_per_node"),
    ("open-mode", "nothing: a job that starts again appends to its log"),
    ("output", "nothing: the log is RUN/slurm/JOBID.log"),
    ("requeue", "cluster.requeue"),
    ("no-requeue", "cluster.requeue"),
    ("signal", "cluster.signal_seconds"),
    ("wrap", "cluster.setup"),
)

_Text = Annotated[str, Field(min_length=1)]


class ContainerConfig(Section):
    image: _Text = Field(description="srun's --container-image (pyxis): a URI or a .sqsh file")
    mounts: list[_Text] = Field(default_factory=list, description="FROM:TO of --container-mounts")
    python: _Text = Field("python", description="the Python inside that has Maskwright")

    @field_validator("mounts")
    @classmethod
    def _mounts(cls, mounts: list[str]) -> list[str]:
        for mount in mounts:
            if not re.fullmatch(r"/[^:,]*(:/[^:,]*(:[\w+]+)?)?", mount):
                raise ValueError(f"{mount!r} is not of the form /FROM:/TO, with absolute paths")
        return mounts


class ClusterConfig(Section):
    nodes: int = Field(1, ge=1, description="nodes to train on")
    gpus_per_node: int = Field(1, ge=1, description="training processes on each node, one a GPU")
    cpu: bool = Field(False, description="ask for no GPUs: the processes train on CPU, over gloo")
    cpus_per_process: int | None = Field(None, ge=1, description="cores of each; by default 4, or 1 with cpu")
    spare_nodes: int = Field(0, ge=0, description="additional nodes, to replace one that fails")
    job_name: _Text | None = Field(None, description="by default the run folder's name")
    partition: _Text | None = Field(None, description="as for sbatch")
    account: _Text | None = Field(None, description="as for sbatch")
    qos: _Text | None = Field(None, description="as for sbatch")
    constraint: _Text | None = Field(None, description="as for sbatch")
    reservation: _Text | None = Field(None, description="as for sbatch")
    time: _Text | None = Field(None, description="time limit: minutes, HH:MM:SS or D-HH:MM:SS")
    mem: _Text | None = Field(None, description="memory of each node, as for sbatch")
    exclusive: bool = Field(False, description="take whole nodes")
    signal_seconds: int = Field(120, ge=30, le=65535, description="the run saves so long before the time limit")
    requeue: bool = Field(True, description="queue again after the time limit, a preemption or a lost node")
    max_restarts: int = Field(3, ge=0, description="new starts on the same nodes after a failure")
    max_requeues: int = Field(5, ge=1, description="starts from the queue without a new checkpoint")
    health_seconds: int = Field(60, ge=5, description="time limit of the health check of a node")
    options: list[_Text] = Field(default_factory=list, description="more options of sbatch: --NAME or --NAME=VALUE")
    modules: list[_Text] = Field(default_factory=list, description="environment modules to load")
    setup: str | None = Field(None, description="lines of bash to run before, such as conda activate")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables, none of them secret")
    container: ContainerConfig | None = Field(None, description="run each node's part in a container")
    interface: _Text | None = Field(None, description="network interface; by default the one that leads to the others")

    @field_validator("options")
    @classmethod
    def _options(cls, options: list[str]) -> list[str]:
        for option in options:
            match = re.fullmatch(r"--([a-z][a-z-]*)(?:=(.+))?", option)
            if not match:
                raise ValueError(f"{option!r} is not of the form --NAME or --NAME=VALUE")
            for own, instead in _OWN_OPTIONS:
                if own.startswith(match[1]):  # sbatch takes abbreviations
                    raise ValueError(f"--{own} is Maskwright's own; set {instead}")
            if secret := assigned_secret(option):
                raise ValueError(_NO_SECRETS.format(secret))
        return options

    @field_validator("setup")
    @classmethod
    def _setup(cls, setup: str | None) -> str | None:
        if secret := assigned_secret(setup or ""):
            raise ValueError(_NO_SECRETS.format(secret))
        return setup

    @field_validator("environment")
    @classmethod
    def _environment(cls, environment: dict[str, str]) -> dict[str, str]:
        for name, value in environment.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or not value.isprintable():
                raise ValueError(f"{name!r} with the value {value!r} cannot be an environment variable in a job script")
            if is_secret(name, value):
                raise ValueError(_NO_SECRETS.format(name))
        return environment

    def problems(self) -> Iterator[str]:
        if self.spare_nodes and not self.max_restarts:
            yield "spare_nodes are for new starts after a failure; set max_restarts to 1 or more"


_NO_SECRETS = "{} looks like a secret, and the job script is kept; export it where you submit, and sbatch hands it on"
