"""One run, interrupted repeatedly until it completes, against the uninterrupted run."""

import copy
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pretrain import checkpoint
from pretrain.config_files import load_config
from pretrain.run import RunFolder
from tests.support import forked, runs
from tests.support.checkpoints import must_be_committed
from tests.system.soak import faults
from tests.system.soak.faults import AT_ONCE, HARD, SOFT, Fault
from tests.system.soak.journal import last_step, read_lines, results

PROCESSES, CHECKPOINT_STEPS, EVAL_STEPS = 2, 5, 7
STEPS_PER_FAULT = 6
END_SECONDS, QUICK_SECONDS = 60.0, 6.0


@dataclass
class Report:
    """Results: faults by (kind, moment), the most steps that one fault cost, and the longest end of a run."""

    steps: int
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    most_lost: int = 0
    repeated: int = 0
    longest_end: float = 0.0
    leftovers: int = 0  # partial checkpoints that kills left, each gone after the next start
    seconds: float = 0.0


def soak(
    folder: Path, n_faults: int, seed: int, say: Callable[[str], None] = lambda line: None, **settings: Any
) -> Report:
    """Interrupt a run at `n_faults` random moments, let it complete, and check all that it has promised.

    Args:
        settings: of tests.support.runs.tiny_config.

    Raises:
        AssertionError: naming the fault after which something was wrong.
    """
    steps = n_faults * STEPS_PER_FAULT
    own = {"train__steps": steps, "checkpoint__every_steps": CHECKPOINT_STEPS, "eval__every_steps": EVAL_STEPS}
    soaked = Soaked.of(runs.tiny_data(folder), folder, own | settings)
    begun = time.monotonic()
    for number in range(n_faults):
        left = (steps - last_step(soaked.folder.journal)) // (n_faults - number + 1)
        fault = faults.draw_fault(seed, number, min(left, STEPS_PER_FAULT))
        say(f"{number + 1} of {n_faults}: {fault.kind}, {fault.moment}: {soaked.interrupt(fault)}")
    soaked.complete()
    soaked.report.seconds = time.monotonic() - begun
    return soaked.report


class Soaked:
    """A run that is started, interrupted and checked against `whole`, the same run left alone."""

    def __init__(self, whole: RunFolder, folder: RunFolder, config: Path):
        self.whole, self.folder, self.config = whole, folder, config
        self.settings = load_config(config)
        self.wanted = results(read_lines(whole.journal))
        self.report = Report(self.settings.train.steps)
        self.log = folder.path.parent / "log"
        self._lines = 0  # of the journal, at the last start

    @classmethod
    def of(cls, data: Path, folder: Path, settings: dict[str, Any]) -> "Soaked":
        """Train the run that is left alone.

        Args:
            settings: of tests.support.runs.tiny_config; "checkpoint__copies" sets a `checkpoint.remote` for each run.
        """
        whole, run = RunFolder(folder / "left-alone" / "run"), RunFolder(folder / "soaked" / "run")
        configs = []
        for each in (whole, run):
            each.path.parent.mkdir()
            values = runs.tiny_config(data, each.path, **copy.deepcopy(settings))
            if values["checkpoint"].pop("copies", False):
                values["checkpoint"]["remote"] = f"file://{each.path.parent}/remote"
            configs.append(runs.write_config(each.path.parent / "config.yaml", values))
        log = whole.path.parent / "log"
        left_alone = runs.start_maskwright(log, "train", configs[0], "--procs", str(PROCESSES))
        assert left_alone.wait(1800) == 0, log.read_text()[-3000:]
        return cls(whole, run, configs[1])

    def interrupt(self, fault: Fault) -> str:
        """Start the run, and do this to it; what came of it."""
        try:
            return self._interrupt(fault)
        except AssertionError as error:
            log = self.log.read_text()[-3000:] if self.log.exists() else ""
            raise AssertionError(f"{fault}: {error}\n{log}") from error

    def _interrupt(self, fault: Fault) -> str:
        stops = [f"run.stop_after={fault.steps}"] if fault.kind == "run.stop_after" else []
        start, command = self._newest(), self._start(*stops)
        family = faults.find_family(command, PROCESSES)
        assert family, "the run ended before its ranks were there"
        if not stops:
            came = faults.await_moment(fault, command, self.folder, start, self.settings.eval.every_steps)
            assert came, "the run ended by itself"
        struck = time.monotonic()
        faults.strike(fault, family, self.folder.stop, self.log)
        code = command.wait(QUICK_SECONDS if fault.kind in AT_ONCE else END_SECONDS)
        forked.assert_none_left(END_SECONDS)
        self.report.longest_end = max(self.report.longest_end, time.monotonic() - struck)
        self.report.faults[fault.kind, fault.moment] += 1
        return self._check_end(fault, code, start)

    def complete(self) -> None:
        """Start the run and let it come to its end."""
        start, command = self._newest(), self._start()
        assert command.wait(600) == 0, self.log.read_text()[-3000:]
        forked.assert_none_left()
        self._check_steps(start)
        status = self.folder.read_status()
        assert (status.state, status.step) == ("completed", self.report.steps)
        assert results(read_lines(self.folder.journal)) == self.wanted
        names = [path.name for path in self.folder.checkpoints.iterdir()]
        assert sorted(names) == sorted(path.name for _, path in checkpoint.committed(self.folder.checkpoints)), names
        assert_same_checkpoint(self.whole, self.folder, self.report.steps)
        assert_tracked_once(self.folder, self.report.steps)
        if self._remote.exists():
            assert checkpoint.committed(self._remote)[0][0] == self.report.steps

    @property
    def _remote(self) -> Path:
        """The folder of checkpoint.remote; "none" if there is none."""
        return Path((self.settings.checkpoint.remote or "none").removeprefix("file://"))

    def _start(self, *overrides: str) -> forked.Forked:
        self._lines = len(read_lines(self.folder.journal))
        self.log.unlink(missing_ok=True)
        command = runs.start_maskwright(self.log, "train", self.config, *overrides, "--procs", str(PROCESSES))
        assert isinstance(command, forked.Forked), "a soak is for machines without GPUs"
        return command

    def _newest(self) -> int:
        """The step to resume after; every committed checkpoint must be whole."""
        committed = checkpoint.committed(self.folder.checkpoints)
        for _, path in committed:
            assert (problem := checkpoint.verify(path)) is None, problem
        for _, path in checkpoint.committed(self._remote):
            if (path / "manifest.json").exists():  # a copy without one does not count yet
                assert (problem := checkpoint.verify(path)) is None, problem
        return committed[0][0] if committed else 0

    def _check_end(self, fault: Fault, code: int, start: int) -> str:
        end = self._check_steps(start)
        newest = self._newest()
        assert newest >= start, f"the checkpoint of step {start} is gone"
        saving = self.settings.checkpoint
        kept = must_be_committed(end, saving.every_steps, saving.asynchronous)
        assert newest >= kept, f"{end - newest} steps are lost"
        self.report.most_lost = max(self.report.most_lost, end - newest)
        self.report.repeated += end - newest
        self.report.leftovers += len(list(self.folder.checkpoints.glob("step-*.tmp")))
        state = self._check_status(fault, code, newest)
        assert end == newest or fault.kind not in SOFT, f"asked to stop, it lost the steps after {newest}"
        return f"{state}, steps {start + 1} to {end}, checkpoint of {newest}"

    def _check_status(self, fault: Fault, code: int, newest: int) -> str:
        if not self.folder.status.exists():
            assert fault.moment == "start", "no status.json"
            return "not begun"
        status = self.folder.read_status()
        if fault.kind in HARD:
            assert code == 1, f"exit code {code}"
            recorded = runs.status(self.folder.path)["state"]
            assert recorded == "failed" or fault.moment == "start", f"status.json says {recorded}"
        elif fault.kind in SOFT:
            assert (code, status.state, status.step) == (75, "stopped", newest), (code, status)
        elif fault.kind in AT_ONCE:
            assert (code, status.state, status.step) == (130, "stopped", newest), (code, status)
            assert status.reason == "ended by Ctrl-C at once"
        if fault.kind == "run.stop_after":
            assert (newest, status.reason, status.retry) == (fault.steps, "run.stop_after is reached", False), status
        assert not self.folder.stop.exists()
        assert status.state in ("failed", "stopped"), status
        return status.state

    def _check_steps(self, start: int) -> int:
        """The last step of this start: steps follow each other from the checkpoint on, with the values they must have.

        A fault before the first step leaves the last step where it was.
        """
        lines = read_lines(self.folder.journal)[self._lines :]
        steps = [entry.step for entry in lines if entry.batch]
        assert steps == list(range(start + 1, start + 1 + len(steps))), f"after step {start} came {steps}"
        for name, value in results(lines).items():
            assert self.wanted[name] == value, f"{name} is {value} and was {self.wanted[name]} in the run left alone"
        return start + len(steps)


def assert_same_checkpoint(reference: RunFolder, run: RunFolder, step: int) -> None:
    """The weights, the optimizer's state and whatever else the last checkpoints hold, to the last bit."""
    mine, theirs = (folder.checkpoints / f"step-{step:08d}" for folder in (run, reference))
    files = sorted(path.relative_to(theirs) for path in theirs.rglob("*.pt"))
    assert sum("optim_states" in path.name for path in files) == PROCESSES, files
    for name in files:
        # Both were written by this soak.
        found, wanted = (torch.load(folder / name, weights_only=False) for folder in (mine, theirs))
        assert_same(found, wanted, str(name))


def assert_same(found: Any, wanted: Any, where: str) -> None:
    assert type(found) is type(wanted), where
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype, where
        assert torch.equal(found, wanted), f"{where} differs"
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            assert_same(found[key], wanted[key], f"{where}: {key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}: {number}")
    elif isinstance(wanted, bool | int | float | str | bytes | None):
        assert found == wanted, where


def assert_tracked_once(run: RunFolder, steps: int) -> None:
    """MLflow has one run, with each step's loss once."""
    sent = runs.maskwright("track", "sync", run.path, "--yes")
    assert sent.returncode == 0, sent.stderr
    losses = {step: value for (step, name), value in results(read_lines(run.journal)).items() if name == "train/loss"}
    with closing(sqlite3.connect(run.path.parent / "mlflow.db")) as database:
        assert database.execute("select count(*) from runs").fetchone() == (1,)
        rows = database.execute("select step, value from metrics where key = 'train/loss' order by step").fetchall()
    assert rows == [(step, losses[step]) for step in range(1, steps + 1)]
