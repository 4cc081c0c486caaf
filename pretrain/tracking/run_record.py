"""RUN/mlflow_run.json: the description of a run for MLflow, and how much of it was sent."""

import itertools
import json
import re
import reprlib
import shlex
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from data_prep.common.errors import MissingFile, UserError
from data_prep.common.reading import read_json, unusable
from data_prep.common.urls import redact
from data_prep.format import Dataset
from pretrain.config import Config
from pretrain.run import RunFolder

_KEY = re.compile("[0-9a-f]{32}")
_DESCRIBED = 3  # data sets
_LONGEST_DIGEST = 36  # MLflow's limit


def new_key() -> str:
    """A key that no other run has."""
    return uuid.uuid4().hex


@dataclass
class RunRecord:
    """The description of a run, how far its journal was sent, and the files that wait."""

    uri: str  # redacted
    experiment: str
    run_name: str
    params: dict[str, str]
    tags: dict[str, str]
    parent: str | None = None  # name or id of the MLflow run that this one is part of
    key: str = field(default_factory=new_key)  # finds the run again where its id was not recorded
    run_id: str | None = None
    experiment_id: str | None = None  # with run_id, the page of the run
    offset: int = 0  # bytes of the journal that have been sent
    step: int | Literal[-1] = -1  # of the last line sent
    line: str = ""  # the digest of that line
    lost: bool = False  # whether the journal has lost lines that were sent
    restarts: int = 0
    status: str = "RUNNING"
    end_time: int | None = None  # Unix milliseconds
    artifacts: list[str] = field(default_factory=list)  # names of files in RUN that are still to be uploaded
    inputs: list[dict[str, str]] = field(default_factory=list)  # data sets, as `describe_input` gives them
    description: str = ""  # Markdown, for a new MLflow run

    @classmethod
    def of_run(
        cls,
        config: Config,
        name: str,
        environment: dict[str, Any],
        data: tuple[str, Iterable[Dataset]],
        valid: Dataset | None,
        files: list[str],
    ) -> "RunRecord":
        """The record of a run that starts.

        Args:
            environment: as pretrain.reporting.record_environment returns it.
            data: fingerprint of the training data, and its data sets.
            files: names of files in the run folder that MLflow gets.
        """
        (fingerprint, datasets), unmasked = data, all(kind.view.forward for kind in config.objective_kinds)
        params = {
            "model": config.model.title,
            "objective": config.objective_text,
            "masking": "none"
            if unmasked
            else _by_stage(f"{part.config.masking.strategy} {part.config.masking.rate}" for part in config.run_phases),
            "seq_len": _by_stage(stage.seq_len for stage in config.stages),
            "global_batch_size": _by_stage(stage.global_batch_size for stage in config.stages),
            "optimizer": config.optim.name,
            "lr": _by_stage(phase.config.optim.lr for phase in config.run_phases),
            "schedule": _by_stage(
                f"{own.kind}, {own.warmup_steps} warmup steps"
                for own in (phase.config.schedule for phase in config.run_phases)
            ),
            "precision": config.train.precision,
            "parameters": str(environment["parameters"]),
            "seed": str(config.run.seed),
        }
        inputs = [describe_input(dataset, "training") for dataset in datasets]
        description = _describe(config, params, inputs)
        inputs += [describe_input(valid, "eval")] if valid else []
        tags, parent = run_tags(fingerprint, environment), config.track.parent
        tags["steps"] = str(config.train.steps)  # no parameter: a resumed run may have more, and those do not change
        tags |= {
            f"phase.{part.name}": f"steps {part.start + 1} to {part.end}" for part in config.run_phases if part.name
        }
        return cls(
            config.track.uri,
            config.track.experiment,
            name,
            params,
            tags,
            parent,
            artifacts=files,
            inputs=inputs,
            description=description,
        )

    @classmethod
    def load(cls, run_dir: Path) -> "RunRecord | None":
        """The record of a run folder; None if there is no file. Raises UserError if it is damaged."""
        path, hint = RunFolder(run_dir).mlflow_run, "delete it to start a new MLflow run"
        try:
            record: RunRecord = read_json(path, cls, hint=hint)
        except MissingFile:
            return None
        if not _KEY.fullmatch(record.key):  # it becomes part of the names of files
            raise unusable(path, f".key is {reprlib.repr(record.key)}, not 32 hexadecimal digits", hint)
        return record

    @classmethod
    def require(cls, run_dir: Path) -> "RunRecord":
        """The record of a run folder. Raises UserError if it is missing or damaged."""
        record = cls.load(run_dir)
        if record is None:
            raise UserError(f"{run_dir} has no mlflow_run.json. Name the folder of a run.")
        return record

    def continue_from(self, earlier: "RunRecord") -> None:
        """Keep the MLflow run, the progress and the waiting files of an earlier start of this run."""
        self.restarts = earlier.restarts + 1
        if earlier.experiment == self.experiment:
            self.key, self.run_id, self.experiment_id = earlier.key, earlier.run_id, earlier.experiment_id
            self.offset, self.step, self.line, self.lost = earlier.offset, earlier.step, earlier.line, earlier.lost
            self.artifacts = list(dict.fromkeys([*earlier.artifacts, *self.artifacts]))


def _describe(config: Config, params: dict[str, str], training: list[dict[str, str]]) -> str:
    """The description of a run: its model, its data and the next commands, in Markdown."""
    run = shlex.quote(str(config.run.dir))
    data = [f"`{dataset['name']}`, {json.loads(dataset['profile'])['tokens']:,} tokens" for dataset in training]
    more = f", and {len(data) - _DESCRIBED} more data sets" if len(data) > _DESCRIBED else ""
    on_models = f"- Checkpoints for the Models page: `maskwright track models {run}`\n"
    return (
        f"Pretraining of {params['model']}, {int(params['parameters']):,} parameters, objective {params['objective']}, "
        f"on {'; '.join(data[:_DESCRIBED])}{more}. `maskwright train` writes it to `{run}`.\n\n"
        f"- State and next step: `maskwright status {run}`\n"
        f"- A Hugging Face model: `maskwright export {run}`\n"
        f"{on_models if config.objective_kind.fills_masks else ''}"
    )


def _by_stage(values: Iterable[object]) -> str:
    """The values of the stages, such as "128, 512"; of more than eight, the first two and the last."""
    texts = [str(value) for value, _ in itertools.groupby(values)]
    return ", ".join(texts if len(texts) <= 8 else [*texts[:2], "...", texts[-1]])


def run_tags(fingerprint: str, environment: dict[str, Any]) -> dict[str, str]:
    """Tags of a start of a run; of several starts, MLflow keeps the last one's."""
    commit, slurm = environment["git_commit"], environment["slurm"]
    tags = {
        "dataset": fingerprint,
        "git_commit": commit or "unknown",
        "git_changes": "true" if environment["git_changes"] else None,
        "mlflow.source.git.commit": commit,  # the interface shows this one as the version
        "mlflow.source.name": "maskwright train",
        "maskwright_version": environment["packages"]["maskwright"],
        "world_size": str(environment["processes"]),
        "hosts": ", ".join(host["host"] for host in environment["hosts"]),
        "slurm_job_id": slurm.get("SLURM_ARRAY_JOB_ID", slurm.get("SLURM_JOB_ID")),
        "slurm_array_task_id": slurm.get("SLURM_ARRAY_TASK_ID"),
    }
    return {name: value for name, value in tags.items() if value is not None}


def describe_input(dataset: Dataset, context: Literal["training", "eval"]) -> dict[str, str]:
    """The fields of MLflow's Dataset, and the context. Schema and profile are JSON as MLflow's pages show it."""
    manifest, location = dataset.manifest, redact(str(dataset.location))
    tokens = {"name": "tokens", "type": "tensor", "tensor-spec": {"dtype": manifest.dtype, "shape": [-1]}}
    profile = {
        "documents": manifest.totals.documents,
        "tokens": manifest.totals.tokens,
        "shards": len(manifest.shards),
        "vocabulary": manifest.tokenizer.vocab_size,
        "fingerprint": manifest.fingerprint,
    }
    return {
        "context": context,
        "name": "/".join(PurePosixPath(location.rstrip("/")).parts[-2:]),  # such as books/train
        "digest": manifest.fingerprint[:_LONGEST_DIGEST],
        "source": json.dumps({"uri": location}),
        "schema": json.dumps({"mlflow_tensorspec": [tokens]}),
        "profile": json.dumps(profile),
    }
