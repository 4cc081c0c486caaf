"""A study and its files: the definition (STUDY/study.json) and the runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from data_prep.common.errors import MissingFile, UserError
from data_prep.common.files import write_file, write_json
from data_prep.common.reading import json_or_none, parse_json, read_bytes
from data_prep.common.urls import redact
from data_prep.storage import not_a
from evaluation.study.study_arms import Sweep
from pretrain.checkpoint import changed_settings
from pretrain.config import Config
from pretrain.config_files import as_yaml_text, flat, merged
from pretrain.run import RunFolder

EVALUATION, FINETUNING, RECORD = "evaluate.json", "finetune.json", "study.json"
"""Files that a study adds to a run folder. The record marks a finished run and is written last."""
_WithoutNul = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]


@dataclass(frozen=True)
class Arm:
    """Settings that are compared with others.

    name: also used in folder names. overrides: what it changes in the study's config, by key. config: the keys of its
    config that decide results, and digests of its data, as JSON values.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.+=,-]{0,199}$")]
    overrides: dict[str, Any]
    config: dict[str, Any]

    @property
    def steps(self) -> int:
        """Steps of each run."""
        return int(self.config["train"]["steps"])


def read_result(path: Path) -> dict[str, Any]:
    """Read the JSON object of a result; an empty one if the file is missing, a link or damaged."""
    return {} if path.is_symlink() else json_or_none(path, dict[str, Any], nan=True) or {}


@dataclass(frozen=True)
class StudyRun:
    """One run of a study.

    folder: its run folder. results: names of the files with its results.
    """

    arm: Arm
    seed: int
    folder: Path
    results: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def is_done(self) -> bool:
        """Whether the run has its record, and all results."""
        return all(read_result(self.folder / name) for name in (RECORD, *self.results))


class Study(BaseModel):
    """A study and its definition.

    folder: of the study; not stored.
    baseline: the arm to compare with.
    about: what all arms have in common, in words.
    seeds: number of seeds; run.seed is 1, 2, ... processes: per training.
    stop_early: whether an arm that is worse than the best gets no more seeds.
    primary: the measure that decides the recommendation.
    losses: whether held-out losses are compared, as all models predict a token from the same side.
    data, pairs: the held-out data set and minimal pairs of the evaluation. pairs_limit: maximum pairs per UID.
    seq_len: tokens per row of the evaluation; None: its default.
    finetune: options of `maskwright finetune`; empty: no fine-tuning.
    contents: digests of data.valid, pairs and fine-tuning files, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path = Field(exclude=True)
    version: Literal[2] = 2
    arms: tuple[Arm, ...]
    baseline: str
    about: str
    seeds: int = Field(ge=1, le=1000)
    stop_early: bool
    processes: int = Field(ge=1, le=1 << 20)
    primary: Literal["held_out", "pairs", "downstream"]
    losses: bool
    data: _WithoutNul
    seq_len: int | None
    pairs: _WithoutNul | None
    pairs_limit: int | None = Field(ge=1)
    finetune: tuple[_WithoutNul, ...]
    contents: dict[str, str]

    @model_validator(mode="after")
    def _agrees(self) -> "Study":
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names) or self.baseline not in names:
            raise ValueError("the arms have one name each, and the baseline is one of them")
        for arm in self.arms:
            train = arm.config.get("train")
            if not isinstance(train, dict) or type(train.get("steps")) is not int or train["steps"] < 1:
                raise ValueError("config.train.steps of an arm is a whole number from 1")
            if not arm.overrides or arm.overrides.keys() != self.arms[0].overrides.keys():
                raise ValueError("all arms override the same keys")
        return self

    @classmethod
    def open(cls, folder: Path) -> "Study":
        """Read the study in a folder. Raises UserError if there is no study, or it cannot be read."""
        path = folder / "study.json"
        try:
            data = read_bytes(path)
        except MissingFile:
            raise not_a(folder, "a study folder", "Make a study with `maskwright study sweep`.") from None
        try:
            values = parse_json(data, dict[str, Any]) | {"folder": str(folder)}
            return cls.model_validate_json(json.dumps(values), strict=True)
        except ValueError:
            raise UserError(
                f"{path} is damaged or of another version of Maskwright. Restore it, or begin again."
            ) from None

    def save(self, sweep: Sweep) -> None:
        """Write study.json and config.yaml. Raise UserError if that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self.folder / "config.yaml", as_yaml_text(sweep.values, sort_keys=False).encode())
            write_json(self.folder / "study.json", self.model_dump(mode="json"))
        except OSError as error:
            raise UserError(f"{self.folder}: the study cannot be written ({error.strerror})") from None

    @property
    def runs(self) -> list[StudyRun]:
        """All runs, seed by seed, so that an unfinished study can already compare arms. More seeds come last."""
        results = (EVALUATION, FINETUNING) if self.finetune else (EVALUATION,)
        return [
            StudyRun(arm, seed, self.folder / "runs" / arm.name / f"seed-{seed}", results)
            for seed in range(1, self.seeds + 1)
            for arm in self.arms
        ]

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the unfinished runs, from 1."""
        return [number for number, run in enumerate(self.runs, 1) if not run.is_done]

    def describe(self) -> list[str]:
        """Lines of a preview: the arms with their steps, and the number of runs. The folder need not exist yet."""
        lines = [f"{self.folder}: {len(self.arms)} arms, {self.seeds} seeds each, baseline {self.baseline}"]
        width = max(len(arm.name) for arm in self.arms)
        lines += [f"  {arm.name:<{width}}  {arm.steps:,} steps" for arm in self.arms]
        total, left = len(self.runs), len(self.unfinished)
        return [*lines, f"{total} runs" + (f", {total - left} of them done" if left < total else "")]


def deciding(config: Config) -> dict[str, Any]:
    """Config entries that affect results, as JSON values."""
    values = config.model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in ("track", "cluster", "run")}


def continued(study: Study) -> Study:
    """Return the study stored in its folder with the new number of seeds, or `study` for a new folder.

    Settings that do not affect results may differ from the stored study.

    Raises UserError naming the difference to the stored study, or if the folder is a run folder.
    """
    folder = study.folder
    if RunFolder(folder).status.exists():
        raise UserError(f"{folder} is the folder of a run; choose another run.dir for the study")
    if not (folder / "study.json").exists():
        if (folder / "runs").exists():
            raise UserError(f"{folder}/runs has runs of a study without its study.json; choose another run.dir")
        return study
    before = Study.open(folder)
    check_same(before, study, f"{folder} holds another study", "choose another run.dir, or ask for the same one")
    if study.seeds < before.seeds:
        raise UserError(f"{folder} holds a study of {before.seeds} seeds; seeds can be added, not taken away")
    return before.model_copy(update={"seeds": study.seeds, "stop_early": study.stop_early})


def check_same(before: Study, now: Study, problem: str, advice: str) -> None:
    """Require that two studies are equal, except for seeds, early stopping, and contents that `before` does not have.

    Raises UserError with the problem, the first difference, and the advice.
    """
    then = _settings(before)
    named = changed_settings(then, _settings(now)).items()
    if changed := [said for name, said in named if name in then or "contents." not in name]:
        more = f" (and {len(changed) - 1} more)" if changed[1:] else ""
        raise UserError(redact(f"{problem}: {changed[0]}{more}; {advice}"))


def _settings(study: Study) -> dict[str, Any]:
    """All settings but these two, by name. Keys without the name of an arm are of the first one."""
    first, *rest = study.arms
    values = study.model_dump(mode="json", exclude={"seeds", "stop_early", "about", "arms"})
    names = {"arms": [arm.name for arm in study.arms]}
    return flat(names | merged(values, first.config) | {arm.name: arm.config for arm in rest})
