"""One run, interrupted repeatedly until it completes, against the uninterrupted run."""

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
from pretrain.config import load_config
from pretrain.run import RunFolder
from tests.support import forked, runs
from tests.support.checkpoints import must_be_committed
from tests.system.soak import faults
from tests.system.soak.faults import HARD, SOFT, Fault
from tests.system.soak.journal import last_step, read_lines, results, training_steps

PROCESSES, CHECKPOINT_STEPS, EVAL_STEPS = 2, 5, 7
STEPS_PER_FAULT = 6
END_SECONDS = 60.0


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
    """Interrupt a run `n_faults` times, let it complete, and check all that it has promised.

    Args:
        settings: of tests.support.runs.tiny_config.

    Raises:
        AssertionError: naming the fault after which something was wrong.
    """
    data, steps = runs.tiny_data(folder), n_faults * STEPS_PER_FAULT
    settings = {
        "train__steps": steps,
        "checkpoint__every_steps": CHECKPOINT_STEPS,
        "eval__every_steps": EVAL_STEPS,
        **settings,
    }
    reference, run = RunFolder(folder / "left-alone" / "run"), RunFolder(folder / "soaked" / "run")
    configs = []
    for one in (reference, run):
        one.path.parent.mkdir()
        configs.append(runs.write_config(one.path.parent / "config.yaml", runs.tiny_config(data, one.path, **settings)))
    left_alone = runs.start_maskwright(reference.path.parent / "log", "train", configs[0], "--procs", str(PROCESSES))
    assert left_alone.wait(1800) == 0, "the run left alone did not complete"
    asynchronous = load_config(configs[1]).checkpoint.asynchronous
    soaked = Soaked(run, configs[1], asynchronous, results(read_lines(reference.journal)), Report(steps))
    begun = time.monotonic()
    for number in range(n_faults):
        left = (steps - last_step(run.journal)) // (n_faults - number + 1)
        fault = faults.draw_fault(seed, number, min(left, STEPS_PER_FAULT))
        try:
            say(f"{number + 1} of {n_faults}: {fault.kind}, {fault.moment}: {soaked.interrupt(fault)}")
        except AssertionError as error:
            log = soaked.log.read_text()[-3000:] if soaked.log.exists() else ""
            raise AssertionError(f"fault {number} ({fault}): {error}\n{log}") from error
    soaked.complete()
    soaked.report.seconds = time.monotonic() - begun
    assert_same_checkpoint(reference, run, steps)
    assert_tracked_once(run, steps)
    return soaked.report


class Soaked:
    """A run that is started, interrupted and checked."""

    def __init__(
        self, folder: RunFolder, config: Path, asynchronous: bool, wanted: dict[tuple[int, str], Any], report: Report
    ):
        self.folder, self.config, self.wanted, self.report = folder, config, wanted, report
        self.asynchronous = asynchronous
        self.log = folder.path.parent / "log"
        self._lines = 0  # of the journal, at the last start

    def interrupt(self, fault: Fault) -> str:
        """Start the run, and do this to it; what came of it."""
        start, command = self._newest(), self._start()
        family = faults.find_family(command, PROCESSES)
        assert family, "the run ended before its ranks were there"
        assert faults.await_moment(fault, command, self.folder, start, EVAL_STEPS), "the run ended by itself"
        faults.strike(fault, family, self.folder.stop)
        struck = time.monotonic()
        code = command.wait(END_SECONDS)
        forked.assert_none_left(END_SECONDS)
        self.report.longest_end = max(self.report.longest_end, time.monotonic() - struck)
        self.report.faults[fault.kind, fault.moment] += 1
        said = self._check_end(fault, code, start)
        return said

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

    def _start(self) -> forked.Forked:
        self._lines = len(read_lines(self.folder.journal))
        self.log.unlink(missing_ok=True)
        command = runs.start_maskwright(self.log, "train", self.config, "--procs", str(PROCESSES))
        assert isinstance(command, forked.Forked), "a soak is for machines without GPUs"
        return command

    def _newest(self) -> int:
        """The step to resume after; every committed checkpoint must be whole."""
        found = checkpoint.committed(self.folder.checkpoints)
        for _, path in found:
            assert (problem := checkpoint.verify(path)) is None, problem
        return found[0][0] if found else 0

    def _check_end(self, fault: Fault, code: int, start: int) -> str:
        end = self._check_steps(start)
        newest = self._newest()
        assert newest >= start, f"the checkpoint of step {start} is gone"
        assert newest >= must_be_committed(end, CHECKPOINT_STEPS, self.asynchronous), f"{end - newest} steps are lost"
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
        assert status.state in ("failed", "stopped"), status
        return status.state

    def _check_steps(self, start: int) -> int:
        """The last step of this start: steps follow each other from the checkpoint on, with the values they must have.

        A fault before the first step leaves the last step where it was.
        """
        lines = read_lines(self.folder.journal)[self._lines :]
        steps = training_steps(lines)
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
