"""Interruptions of a run and their times: given, or drawn by seed and number, so that a soak can be repeated."""

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from pretrain.run import RunFolder
from tests.support.forked import Forked
from tests.system.soak.journal import last_step

# Kinds that leave no time for a checkpoint, and those that ask for one.
HARD = ("SIGKILL of a rank", "SIGKILL of all ranks", "SIGKILL of the launcher")
_DRAWN = ("SIGTERM to a rank", "SIGUSR1 to a rank", "SIGTERM to the command", "STOP file")
SOFT = (*_DRAWN, "Ctrl-C", "signals again and again", "run.stop_after")
EITHER = ("SIGKILL of the command",)  # its launcher then ends the ranks, with SIGTERM
AT_ONCE = ("Ctrl-C twice",)
MOMENTS = ("start", "step", "commit", "evaluation")
_EARLY = (*HARD, *EITHER, "SIGTERM to the command", "STOP file")  # before a rank can receive signals
_SECONDS = 120.0


@dataclass(frozen=True)
class Fault:
    """kind, at moment + delay (seconds).

    steps: of the moment "step", after that many steps of this start; of the kind "run.stop_after", its value.
    """

    kind: str
    moment: str = "step"
    delay: float = 0.0
    steps: int = 1
    rank: int = 1


@dataclass(frozen=True)
class Family:
    """The processes of one start of a run."""

    command: Forked
    launcher: psutil.Process
    ranks: list[psutil.Process]


def draw_fault(seed: int, number: int, steps: int) -> Fault:
    """The fault of a start that should come `steps` steps further or so, fewer than 1 if it should not train on."""
    rng = random.Random(f"fault {seed} {number}")
    moment = rng.choices(MOMENTS, (1, 3, 3, 1))[0] if steps >= 1 else "start"
    kind = rng.choices(HARD if rng.random() < 0.65 else (*_DRAWN, *EITHER))[0]
    if moment == "start" and kind not in _EARLY:
        kind = rng.choice(HARD)
    longest = {"start": 0.8 if steps >= 1 else 0.1, "step": 0.03, "commit": 0.08, "evaluation": 0.02}[moment]
    return Fault(kind, moment, rng.uniform(0, longest), rng.randint(1, max(1, 2 * steps)), rng.randrange(2))


def find_family(command: Forked, processes: int) -> Family | None:
    """Wait for the ranks of a command; None if it exits before."""
    parent = psutil.Process(command.pid)
    children: list[psutil.Process] = []

    def complete() -> bool:
        children[:] = [child for child in parent.children(recursive=True) if "-m" in child.cmdline()]
        return len(children) == processes + 1

    if not _wait(complete, command):
        return None
    launcher = next(child for child in children if "launchers.local.start_ranks" in child.cmdline())
    ranks = sorted((child for child in children if child != launcher), key=lambda child: child.cmdline()[3])
    return Family(command, launcher, ranks)


def await_moment(fault: Fault, command: Forked, folder: RunFolder, start: int, eval_every: int) -> bool:
    """Whether the moment came, after steps from `start` on, before the command ended."""
    begun = time.time()
    conditions: dict[str, Callable[[], bool]] = {
        "start": lambda: True,
        "step": lambda: last_step(folder.journal, begun) >= start + fault.steps,
        "commit": lambda: any(not path.name.endswith(".old.tmp") for path in folder.checkpoints.glob("step-*.tmp")),
        "evaluation": lambda: (
            last_step(folder.journal, begun) > start and last_step(folder.journal, begun) % eval_every == 0
        ),
    }
    if fault.moment == "commit" and not _wait(lambda: last_step(folder.journal, begun) > start, command):
        return False  # what an earlier start left is gone when this one has made a step
    if not _wait(conditions[fault.moment], command):
        return False
    time.sleep(fault.delay)
    return True


def strike(fault: Fault, family: Family, stop: Path, log: Path) -> None:
    """Do it. `log` has what the command prints."""
    victim = family.ranks[fault.rank]
    acts: dict[str, Callable[[], object]] = {
        "SIGKILL of a rank": victim.kill,
        "SIGKILL of all ranks": lambda: [rank.kill() for rank in family.ranks],
        "SIGKILL of the launcher": family.launcher.kill,
        "SIGKILL of the command": family.command.kill,
        "SIGTERM to a rank": victim.terminate,
        "SIGUSR1 to a rank": lambda: victim.send_signal(signal.SIGUSR1),
        "SIGTERM to the command": family.command.terminate,
        "STOP file": stop.touch,
        "Ctrl-C": lambda: family.command.send_signal(signal.SIGINT),
        "signals again and again": lambda: _signal_until_the_end(family),
        "run.stop_after": lambda: None,  # the run was started with it
        "Ctrl-C twice": lambda: _interrupt_twice(family, log),
    }
    acts[fault.kind]()


def _signal_until_the_end(family: Family) -> None:
    """Ask all processes to stop, again and again; a second Ctrl-C would kill the run."""
    deadline = time.monotonic() + _SECONDS
    for number in itertools.cycle((signal.SIGTERM, signal.SIGUSR1)):
        if family.command.poll() is not None:
            return
        assert time.monotonic() < deadline, "the run does not stop"
        for process in (family.command, *family.ranks):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        time.sleep(0.03)


def _interrupt_twice(family: Family, log: Path) -> None:
    for rank in family.ranks:
        rank.suspend()  # so that they cannot save and end
    family.command.send_signal(signal.SIGINT)
    assert _wait(lambda: "Press Ctrl-C again to stop now." in log.read_text(), family.command)
    family.command.send_signal(signal.SIGINT)


def _wait(condition: Callable[[], bool], command: Forked) -> bool:
    deadline = time.monotonic() + _SECONDS
    while command.poll() is None:
        try:
            if condition():
                return True
        except psutil.NoSuchProcess:
            continue
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.001)
    return False
