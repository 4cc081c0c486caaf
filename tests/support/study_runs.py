"""Small studies, and fake commands that write run folders and figures immediately."""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evaluation.study import Stopped, Study, define, open_sweep, run_study
from evaluation.study.study_arms import Sweep
from pretrain.config_files import load_config
from pretrain.run import EXIT_CODES, Entry
from tests.support.configs import config_file
from tests.support.datasets import make_dataset

OVER = ("masking.strategy=token,span",)


class Pretended:
    """Replaces the function of `launchers.local.child_commands`.

    called: the words of each command so far. losses: of an arm's held-out tokens, by its name.
    fails: words of a failing command. stop_after: number of training steps before one stop.
    """

    def __init__(self, losses: dict[str, float] | None = None) -> None:
        self.called: list[list[str]] = []
        self.losses = losses or {}
        self.fails: Callable[[list[str]], bool] = lambda words: False
        self.stop_after: int | None = None  # steps, as by a signal to the study
        self.stop_itself_after: int | None = None  # as by `maskwright stop` of the run

    def __call__(self, words: Sequence[str], log: Path, poll: Callable[[], None] = lambda: None) -> int:
        words = list(words)
        self.called.append(words)
        log.parent.mkdir(parents=True, exist_ok=True)
        if self.fails(words):
            log.write_text("first line\nerror: it went wrong\n")
            return 1
        poll()
        return int(getattr(self, f"_{words[0]}")(words))

    def commands(self) -> list[str]:
        """The command and the run of each call, as in "train strategy=token/seed-1"."""
        found = []
        for words in self.called:
            run = Path(settings(words)["run.dir"] if words[0] == "train" else words[1])
            run = run.parent.parent if run.parent.name == "exports" else run
            found.append(f"{words[0]} {run.parent.name}/{run.name}")
        return found

    def _train(self, words: list[str]) -> int:
        values = settings(words)
        run, steps = Path(values["run.dir"]), load_config(Path(words[1]), words[2:-2]).train.steps
        run.mkdir(parents=True, exist_ok=True)
        if self.stop_after is not None:
            self._status(run, "stopped", self.stop_after, steps)
            self.stop_after = None
            raise Stopped
        if self.stop_itself_after is not None:
            self._status(run, "stopped", self.stop_itself_after, steps)
            self.stop_itself_after = None
            return EXIT_CODES["stopped"]
        with open(run / "journal.jsonl", "wb") as file:
            for step in range(1, steps + 1):
                metrics = {"train/loss": 5.0, "speed/step_seconds": 1.0, "speed/tokens_per_second": 1000.0}
                file.write(Entry(step, float(step), metrics, {"rows": 8, "seq_len": 32}).to_line())
        self._status(run, "completed", steps, steps)
        return 0

    def _status(self, run: Path, state: str, step: int, steps: int) -> None:
        status = {"state": state, "step": step, "total_steps": steps, "reason": "", "next_action": "", "time": 0.0}
        (run / "status.json").write_text(json.dumps(status))

    def _export(self, words: list[str]) -> int:
        model = Path(words[1]) / "exports" / f"step-{int(words[3]):08d}"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        return 0

    def _evaluate(self, words: list[str]) -> int:
        run = Path(words[1]).parent.parent
        arm = run.parent.name
        noise = np.random.default_rng(zlib.crc32(f"{arm}/{run.name}".encode())).normal(0, 0.01)
        loss = self.losses.get(arm, 4.0) + float(noise)
        found: dict[str, Any] = {"held_out": {"loss": loss, "masked_accuracy": 0.3, "predictions": 100}}
        if "--pairs" in words:
            found["pairs"] = {"accuracy": 0.6 + float(noise), "pairs": 100, "interval": [0.5, 0.7], "by": {}}
        Path(words[-1]).write_text(json.dumps({"models": {words[1]: found}, "comparisons": []}))
        return 0

    def _finetune(self, words: list[str]) -> int:
        scores = {"task": "classification", "metric": "mcc", "scores": [0.2], "mean": 0.2}
        Path(words[-1]).write_text(json.dumps(scores))
        return 0


def settings(words: Sequence[str]) -> dict[str, Any]:
    """The overrides of a command, read as the command reads them."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            found[key] = yaml.safe_load(value)
    return found


def study_data(folder: Path) -> Path:
    """The folder itself, with the data sets train and valid in it."""
    for name in ("train", "valid"):
        make_dataset(folder / name, [[5, 6, 7, 8, 9] * 4] * 40)
    return folder


def study_config(folder: Path, data: Path) -> Path:
    """The config of a study whose folder is `folder`/study."""
    values = {
        "run": {"dir": str(folder / "study")},
        "data": {"train": str(data / "train"), "valid": str(data / "valid"), "seq_len": 32},
        "model": {"size": {"layers": 1, "hidden": 32, "heads": 2}},
        "train": {"steps": 40, "global_batch_size": 8},
    }
    return config_file(folder / "config.yaml", values)


def study_of(config: Path, *changes: str, over: Sequence[str] = OVER, **more: Any) -> Study:
    """A study of two seeds, unless `more` says otherwise."""
    return _defined(open_sweep(config, changes, over), **more)


def _defined(sweep: Sweep, **more: Any) -> Study:
    given = {"baseline": None, "seeds": 2, "stop_early": False, "processes": 1}
    return define(sweep, **{**given, "pairs": None, "pairs_limit": None, "finetune": [], **more})


def kept(config: Path, *changes: str, over: Sequence[str] = OVER, **more: Any) -> Study:
    """A study that is written."""
    sweep = open_sweep(config, changes, over)
    study = _defined(sweep, **more)
    study.save(sweep)
    return Study.open(study.folder)


def run(study: Study, commands: Pretended | None = None, only: Any = None) -> tuple[list[str], ...]:
    """(failures, lines, the commands that ran)."""
    commands = commands or Pretended()
    said: list[str] = []
    before = len(commands.called)
    failed = run_study(study, commands, said.append, only=only)
    return failed, said, commands.commands()[before:]
