"""Watchdog: end a run that hangs, and name the rank that is behind or no longer responds.

A thread of each rank rewrites a small file in RUN/heartbeats. Files survive the loss of any node. A rank
whose training makes no progress reads all files twice. It checks only whether they changed, so clocks need not agree.
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from data_prep.common.errors import UserError
from data_prep.common.files import no_link
from data_prep.common.reading import read_json
from pretrain.run import PhaseMarker, RunFolder, RunPhase

_PATIENCE = 3  # times as long for the start, the first step (which compiles) and checkpoints, and then at least:
_LEAST_PATIENCE = 300.0  # seconds
_LONGEST_INTERVAL = 10.0  # seconds between heartbeats
_MAX_BEAT_BYTES = 1 << 12
_LOOKS = 4  # heartbeats of a live rank between two reads


@dataclass(frozen=True)
class Beat:
    """The content of a heartbeat file: the number of heartbeats, and the step and phase of training."""

    number: int
    step: int
    phase: RunPhase

    @property
    def place(self) -> str:
        return f"step {self.step}, {self.phase}"


def verdict(before: Sequence[Beat | None], after: Sequence[Beat | None], hosts: Sequence[str]) -> str:
    """Name the ranks that block a run, from two reads of all heartbeat files; None is an unreadable file."""
    silent = [
        rank
        for rank, (then, now) in enumerate(zip(before, after, strict=True))
        if now is None or (then is not None and then.number == now.number)
    ]
    if silent:
        last = [f", last seen at {now.place}" if (now := after[rank]) else "" for rank in silent]
        named = [f"rank {rank} (on {hosts[rank]}){seen}" for rank, seen in zip(silent, last, strict=True)]
        return f"no sign of life from {', '.join(named)}"
    beats = [beat for beat in after if beat]
    order = [(beat.step, get_args(RunPhase).index(beat.phase)) for beat in beats]
    behind = [rank for rank, place in enumerate(order) if place == min(order)]
    if len(behind) == len(beats):
        return f"all ranks are at {beats[0].place}"
    named = [f"rank {rank} (on {hosts[rank]})" for rank in behind]
    ahead = beats[order.index(max(order))]
    return f"{', '.join(named)} behind at {beats[behind[0]].place}, while others are at {ahead.place}"


class Watchdog:
    """Watches the training thread of this rank.

    Args:
        folder: the run folder.
        marker: the step and phase of the training thread.
        rank: this rank. hosts: the host of each rank.
        hang_seconds: the time limit for a phase; 0 disables the watchdog.
        leave: the function that ends the process.
        clock: seconds; the marker must use the same clock.
    """

    def __init__(
        self,
        folder: RunFolder,
        marker: PhaseMarker,
        rank: int,
        hosts: Sequence[str],
        hang_seconds: float,
        leave: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._marker, self._rank, self._hosts = folder, marker, rank, hosts
        self._seconds, self._leave, self._clock = hang_seconds, leave, clock
        self._interval = min(_LONGEST_INTERVAL, hang_seconds / 10)
        self._number = 0
        self._awake = self._last_check = clock()  # `_awake`: start of the current period without suspension
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        if self._seconds:
            with contextlib.suppress(OSError):
                self._folder.heartbeats.mkdir(exist_ok=True)
            self._beat()
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
            with contextlib.suppress(OSError):
                self._folder.heartbeat_of(self._rank).unlink()

    def _run(self) -> None:
        while not self._closed.wait(self._interval):
            self.check()

    def check(self) -> None:
        """Write a heartbeat, and end the process if training hangs. The thread calls it at regular intervals."""
        now = self._clock()
        if now - self._last_check > _LOOKS * self._interval:
            self._awake = now  # the whole job may have been suspended
        self._last_check = now
        self._beat()
        if self.is_overdue():
            self._check_hang()

    def is_overdue(self) -> bool:
        """Whether the current phase lasts longer than its time limit."""
        at = self._marker.at
        patient = at.phase in ("start", "checkpoint") or at.step == self._marker.first_step
        limit = max(_PATIENCE * self._seconds, _LEAST_PATIENCE) if patient else self._seconds
        return self._clock() - max(at.since, self._awake) > limit

    def _check_hang(self) -> None:
        """Read the heartbeats twice; end the process, unless training continues in between."""
        at, before = self._marker.at, self._read_all()
        for _ in range(_LOOKS):
            if self._closed.wait(self._interval) or self._marker.at is not at:
                return
            self._beat()
        said = verdict(before, self._read_all(), self._hosts)
        self._dump_stacks()
        reason = (
            f"no progress for {self._seconds:g} s (guard.hang_seconds): {said}; {self._folder.stacks} has what each "
            "process was at"
        )
        with contextlib.suppress(UserError, OSError):
            if self._folder.fail(reason, "run the command again; remove that rank's machine if this repeats"):
                print(f"error: {reason}", file=sys.stderr, flush=True)
        self._leave(1)

    def _beat(self) -> None:
        self._number += 1
        at = self._marker.at
        with contextlib.suppress(OSError):
            beat = json.dumps(asdict(Beat(self._number, at.step, at.phase)))
            with open(self._folder.heartbeat_of(self._rank), "w", opener=no_link) as file:
                file.write(beat)

    def _read_all(self) -> list[Beat | None]:
        return [self._read(rank) for rank in range(len(self._hosts))]

    def _read(self, rank: int) -> Beat | None:
        for _ in range(3):  # it may be half written
            with contextlib.suppress(UserError):
                beat: Beat = read_json(self._folder.heartbeat_of(rank), Beat, _MAX_BEAT_BYTES)
                return beat
            time.sleep(0.01)
        return None

    def _dump_stacks(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.stacks.mkdir(exist_ok=True)
            with open(self._folder.stacks_of(self._rank), "w", opener=no_link) as file:
                faulthandler.dump_traceback(file)
