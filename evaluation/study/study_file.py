"""Files of a study: its definition (STUDY/study.json), its step times (STUDY/timing.json), and the list of its runs."""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from data_prep.errors import MissingFile, UserError
from data_prep.files import write_json
from data_prep.reading import parse_json, read_bytes, read_json
from data_prep.storage import not_a
from data_prep.urls import redact
from pretrain.checkpoint import differences
from pretrain.config import Config, flat, save_config
from pretrain.run import RunFolder

Budget = Literal["tokens", "time"]
TIMING_ROUNDS = 2
_STEP_SECONDS = (1e-6, 1e6)
"""Valid range of a step time in seconds; other values mean a damaged file."""
_WithoutNul = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]


@dataclass(frozen=True)
class Arm:
    """A masking method. name: also used in folder names. masking: the config section as JSON values."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-zA-Z0-9_.+-]{0,199}$")]
    masking: dict[str, Any]


class Study(BaseModel):
    """The definition of a study.

    baseline: the arm to compare with; its training time defines equal time.
    seeds: number of seeds; run.seed is 1, 2, ... processes: per training.
    budget: "tokens": all arms train for the same steps; "time": for the same time; "both": separate runs for each.
    primary: the measure that decides the recommendation.
    data, pairs: the held-out data set and minimal pairs of the evaluation. pairs_limit: maximum pairs per UID.
    finetune: options of `maskwright finetune`; empty: no fine-tuning.
    contents: digests of data, pairs, fine-tuning files and data.train, by name.
    config: the run config without keys that do not affect results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    arms: tuple[Arm, ...]
    baseline: str
    seeds: int = Field(ge=1, le=1000)
    budget: Literal["tokens", "time", "both"]
    processes: int = Field(ge=1, le=1 << 20)
    primary: Literal["held_out", "pairs", "downstream"]
    data: _WithoutNul
    pairs: _WithoutNul | None
    pairs_limit: int | None = Field(ge=1)
    finetune: tuple[_WithoutNul, ...]
    contents: dict[str, str]
    config: dict[str, Any]

    @model_validator(mode="after")
    def _agrees(self) -> "Study":
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names) or self.baseline not in names:
            raise ValueError("the arms have one name each, and the baseline is one of them")
        train = self.config.get("train")
        if not isinstance(train, dict) or type(train.get("steps")) is not int or train["steps"] < 1:
            raise ValueError("config.train.steps is a whole number from 1")
        return self

    @property
    def steps(self) -> int:
        """Steps of each run at equal tokens."""
        return int(self.config["train"]["steps"])

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return ("tokens", "time") if self.budget == "both" else (self.budget,)

    @property
    def digest(self) -> str:
        """Digest of everything except the number of seeds, which may grow: 64 hexadecimal digits."""
        values = self.model_dump(mode="json", exclude={"seeds"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @classmethod
    def open(cls, folder: Path) -> "Study":
        """Read the study in a folder. Raises UserError if there is no study, or it cannot be read."""
        path = folder / "study.json"
        try:
            data = read_bytes(path)
        except MissingFile:
            raise not_a(folder, "a study folder", "Make a study with `maskwright study masking`.") from None
        try:
            parse_json(data, dict[str, Any])
            return cls.model_validate_json(data, strict=True)
        except ValueError:
            raise UserError(
                f"{path} is damaged or of another version of Maskwright. Restore it, or begin again."
            ) from None

    def save(self, folder: Path, config: Config) -> None:
        """Write study.json and config.yaml. Raise UserError if that fails."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_config(config, folder / "config.yaml")
            write_json(folder / "study.json", self.model_dump(mode="json"))
        except OSError as error:
            raise UserError(f"{folder}: the study cannot be written ({error.strerror})") from None


@dataclass(frozen=True)
class StudyRun:
    """One run of a study. folder: its run folder. steps: None if the step times must be measured first."""

    budget: Budget
    arm: Arm
    seed: int
    folder: Path
    steps: int | None

    @property
    def name(self) -> str:
        return f"{self.arm.name}, seed {self.seed}" + (", equal time" if self.budget == "time" else "")


def runs_of(folder: Path, study: Study) -> list[StudyRun]:
    """All runs, seed by seed, so that an unfinished study can already compare arms. More seeds come last."""
    runs = {run.folder: run for budget in study.budgets for run in runs_at(folder, study, budget)}
    return sorted(runs.values(), key=lambda run: run.seed)


def runs_at(folder: Path, study: Study, budget: Budget) -> list[StudyRun]:
    """The runs to compare at a budget. The baseline's equal-token runs define equal time, so they serve both."""
    steps = equal_time_steps(folder, study) if budget == "time" else {}
    runs = []
    for seed in range(1, study.seeds + 1):
        for arm in study.arms:
            own: Budget = "tokens" if study.budget == "both" and arm.name == study.baseline else budget
            path = folder / "runs" / own / arm.name / f"seed-{seed}"
            runs.append(StudyRun(own, arm, seed, path, study.steps if own == "tokens" else steps.get(arm.name)))
    return runs


def needs_timing(folder: Path, study: Study) -> bool:
    """Whether the step times of the arms must be measured first."""
    return "time" in study.budgets and not read_rounds(folder, study)


def equal_time_steps(folder: Path, study: Study) -> dict[str, int]:
    """Steps of each arm in the time of the baseline's steps, at least 1; empty until the step times are measured."""
    seconds = {arm: float(np.mean(rounds)) for arm, rounds in read_rounds(folder, study).items()}
    return {arm: max(1, round(seconds[study.baseline] * study.steps / each)) for arm, each in seconds.items()}


def read_rounds(folder: Path, study: Study, partial: bool = False) -> dict[str, list[float]]:
    """Seconds per step, by arm and round. Empty until all rounds are measured, unless `partial`.

    Times in a damaged file or of another study count as not measured.
    """
    seconds: dict[str, list[float]] = {}
    least, most = _STEP_SECONDS
    with contextlib.suppress(UserError):
        timing: _Timing = read_json(folder / "timing.json", _Timing)
        sound = all(least <= value <= most for rounds in timing.seconds.values() for value in rounds)
        seconds = timing.seconds if sound and timing.study == study.digest else {}
    rounds = {arm.name: seconds.get(arm.name, []) for arm in study.arms}
    return rounds if partial or all(len(each) == TIMING_ROUNDS for each in rounds.values()) else {}


@dataclass(frozen=True)
class _Timing:
    """timing.json. study: digest of the study. seconds: per step, by arm, one value per round."""

    study: str
    seconds: dict[str, list[float]]


def deciding(config: Config) -> dict[str, Any]:
    """Config entries that affect the results of all runs, without `masking`, which differs by arm."""
    values = config.model_dump(mode="json")
    return {name: value for name, value in values.items() if name not in ("masking", "track", "cluster", "run")}


def continued(folder: Path, study: Study) -> Study:
    """Return the study stored in the folder with the new number of seeds, or `study` for a new folder.

    Settings that do not affect results may differ from the stored study.

    Raises UserError naming the difference to the stored study, or if the folder is a run folder.
    """
    if RunFolder(folder).status.exists():
        raise UserError(f"{folder} is the folder of a run; choose another run.dir for the study")
    if not (folder / "study.json").exists():
        return study
    before = Study.open(folder)
    check_same(before, study, f"{folder} holds another study", "choose another run.dir, or ask for the same one")
    if study.seeds < before.seeds:
        raise UserError(f"{folder} holds a study of {before.seeds} seeds; seeds can be added, not taken away")
    return before.model_copy(update={"seeds": study.seeds})


def check_same(before: Study, now: Study, problem: str, advice: str) -> None:
    """Require that two studies are equal except for the number of seeds.

    Raises UserError with the problem, the first difference, and the advice.
    """
    if changed := [*differences(_settings(before), _settings(now)).values()]:
        more = f" (and {len(changed) - 1} more)" if changed[1:] else ""
        raise UserError(redact(f"{problem}: {changed[0]}{more}; {advice}"))


def _settings(study: Study) -> dict[str, Any]:
    """All settings except the seeds, by name. Keys missing in a config of an earlier version get defaults."""
    values = study.model_dump(mode="json", exclude={"seeds", "arms", "config"})
    parts = {"run": {"dir": "."}, **study.config}
    try:
        configs = {arm.name: Config.model_validate(parts | {"masking": arm.masking}) for arm in study.arms}
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"The study was made by another version of Maskwright, whose config has another {key}. Continue with that "
            "version, or choose another run.dir."
        ) from None
    masking = {name: config.masking.model_dump(mode="json") for name, config in configs.items()}
    return flat(values | {"arms": [*configs]} | deciding(next(iter(configs.values()))) | masking)
