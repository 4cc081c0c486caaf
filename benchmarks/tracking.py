"""What tracking costs a training step: with it and without, in turns, in one process, on the same batches.

    python benchmarks/tracking.py
    python benchmarks/tracking.py --rounds 9 --steps 30 --threads 1

"With" is what the loop does: a journal line a step, and the thread that sends it to MLflow, which is a SQLite file, a
server, or one that is away: refusing, frozen, answering 500. Without, nothing is reported. Besides the ratio of the
times, which other work on the machine disturbs, it counts what tracking itself uses: the time of the loop's calls, and
the processor time of the thread. Prints a table and writes it to --out.
"""

import argparse
import contextlib
import itertools
import logging
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import torch

from benchmarks.machine import conditions, warn_if_busy
from data_prep.files import atomic_writer
from pretrain.model import (
    Encoder,
    EncoderShape,
)
from pretrain.run.journal import Journal
from pretrain.tracking import RunRecord, Tracker, load_record
from pretrain.tracking.tracking_target import connect
from tests.support.mlflow_server import Proxy, Server, free_port

ROWS, SEQ_LEN, VOCAB = 8, 128, 8192
SHAPE = EncoderShape(
    vocab_size=VOCAB, layers=4, hidden=256, heads=4, intermediate=1024, max_positions=SEQ_LEN, pad_id=0
)
METRICS = (
    *("train/loss", "train/masked_accuracy", "train/learning_rate", "train/mask_rate", "train/grad_norm"),
    *("data/epoch", "data/seq_len", "speed/tokens_per_second", "speed/data_wait", "speed/step_seconds", "speed/tflops"),
)
PREDICTION = """A journal line of 11 metrics and the batch is about 600 bytes. It costs the loop 12 us where
Python is in the processor's caches, and 130 us after a training step, which has put it out of them. The thread
reads it (20 us) and makes 11 points of it. MLflow's client takes 1 ms a step for them with a server and 2 ms with
SQLite, as its database code makes five objects for each point. During an outage nothing is read or sent, and there are
some attempts a minute (0.1 ms). At 200 ms a step: 0.6% with a server, 1.1% with SQLite, 0.1% in an outage, 0.07% for
the journal alone."""
CONNECTED = ("SQLite", "server")
HEADER = (
    *("MLflow is", "ms a step without", "median step with it, to without: median of rounds (least, most)"),
    *("us a step, loop's calls", "us a step, thread's processor time", "both, share of the step"),
    "journal, bytes a step",
)


@dataclass
class Cost:
    """Of each round: the median step's seconds, with tracking and without. Of all steps: seconds of the loop's calls,
    and the thread's processor time."""

    name: str
    with_it: list[float]
    without: list[float]
    calls: float = 0.0
    thread: float = 0.0
    journal_bytes: int = 0
    steps: int = 0


class Training:
    """Steps of a small encoder, always on the same batches in the same order."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        n = ROWS * SEQ_LEN
        bounds = torch.full((n // 2,), n, dtype=torch.int32)
        bounds[: ROWS + 1] = torch.arange(0, n + 1, SEQ_LEN)
        self._fixed = {"positions": torch.arange(SEQ_LEN).repeat(ROWS), "cu_seqlens": bounds}
        self._batches = []
        for _ in range(8):
            tokens = torch.randint(5, VOCAB, (n,), generator=generator)
            masked = torch.randperm(n, generator=generator)[: n * 15 // 100]
            self._batches.append({"tokens": tokens, "masked_positions": masked, "labels": tokens[masked]})
        self._model = Encoder(SHAPE)
        self._model.initialize(0)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=True)

    def step(self, number: int) -> float:
        """One step, and its loss."""
        batch = self._batches[number % len(self._batches)]
        found = self._model(**self._fixed, **batch, seq_len=SEQ_LEN, n_documents=ROWS)
        loss = found.loss / len(batch["labels"])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of each, with and without in turns (%(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="a round and side (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of the training step (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=PLACES, help="these alone")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/tracking.md")
    arguments = parser.parse_args()
    load = warn_if_busy()
    torch.set_num_threads(arguments.threads)
    logging.disable(logging.WARNING)
    with contextlib.suppress(Exception):  # nobody is there; what MLflow imports takes seconds once a process
        connect((f"http://127.0.0.1:{free_port()}", "nowhere"))
    training = Training()
    for number in range(5):
        training.step(number)
    costs = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder, place(name, Path(folder)) as uri:
            costs.append(measure(name, uri, Path(folder), training, arguments.rounds, arguments.steps))
        print(row(costs[-1]), flush=True)
    with atomic_writer(arguments.out) as file:
        file.write(report(costs, arguments.threads, load).encode())


PLACES = ("journal alone", "SQLite", "server", "refusing", "frozen", "answering 500")


@contextlib.contextmanager
def place(name: str, folder: Path) -> Iterator[str]:
    """The address of an MLflow in this state."""
    with ExitStack() as stack:
        if name == "SQLite":
            yield f"sqlite:///{folder}/mlflow.db"
        elif name == "server":
            server = Server(folder)
            stack.callback(server.stop)
            yield server.uri
        elif name == "answering 500":
            proxy = Proxy("http://127.0.0.1:1")
            proxy.mode = "500"
            stack.callback(proxy.close)
            yield proxy.uri
        elif name == "frozen":  # takes connections, as the kernel does for a frozen process, and never answers
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        else:
            yield "none" if name == "journal alone" else f"http://127.0.0.1:{free_port()}"


def measure(name: str, uri: str, folder: Path, training: Training, rounds: int, steps: int) -> Cost:
    """Rounds in turns. Each one with tracking takes the run up again, and has its tracker closed before the next."""
    cost = Cost(name, [], [])
    (folder / "run").mkdir()
    for turn in range(rounds):
        for tracked in (True, False) if turn % 2 else (False, True):
            if tracked:
                _track(cost, uri, folder / "run", training, steps)
            else:
                cost.without.append(_median_seconds(training.step, steps))
    return cost


def _track(cost: Cost, uri: str, run: Path, training: Training, steps: int) -> None:
    tracker = Tracker(run, RunRecord(uri, "benchmark", "run", {}, {}))
    journal = Journal(run / "journal.jsonl")
    tracker.start()
    time.sleep(3)  # imports, a database's tables, the first attempts: once a start of a run
    while cost.name in CONNECTED and not ((record := load_record(run)) and record.run_id):
        time.sleep(0.1)
    used = _thread_seconds(tracker)

    def step(number: int) -> None:
        loss = training.step(number)
        cost.steps += 1
        start = time.perf_counter()
        batch = {"position": {"epoch": 0, "row": cost.steps * ROWS}, "seq_len": SEQ_LEN, "rows": ROWS}
        batch |= {"mask_rate": 0.15, "checksum": "0123456789abcdef", "replaced": 0, "settings": "01234567"}
        journal.append(cost.steps, {metric: loss + i / 7 for i, metric in enumerate(METRICS)}, batch)
        cost.calls += time.perf_counter() - start

    cost.with_it.append(_median_seconds(step, steps))
    if cost.name in CONNECTED:
        while (record := load_record(run)) is None or record.step < cost.steps:
            time.sleep(0.1)
    cost.thread += _thread_seconds(tracker) - used
    journal.close()
    tracker.close(60 if cost.name in CONNECTED else 0.1, "FINISHED")
    cost.journal_bytes = (run / "journal.jsonl").stat().st_size


def _median_seconds(step: Callable[[int], object], steps: int) -> float:
    """Of the median step: what else the machine does for a moment does not count."""
    ends = [time.perf_counter()]
    for number in range(steps):
        step(number)
        ends.append(time.perf_counter())
    return statistics.median(end - begin for begin, end in itertools.pairwise(ends))


def _thread_seconds(tracker: Tracker) -> float:
    """Processor time that the tracker's thread has used."""
    ident = tracker._thread.ident
    return time.clock_gettime(time.pthread_getcpuclockid(ident)) if ident else 0.0


def row(cost: Cost) -> str:
    """A line of the table."""
    ratios = [having / lacking - 1 for having, lacking in zip(cost.with_it, cost.without, strict=True)]
    step = statistics.median(cost.without)
    calls, thread = cost.calls / cost.steps, cost.thread / cost.steps
    return (
        f"| {cost.name} | {step * 1e3:,.0f} "
        f"| {statistics.median(ratios):+.2%} ({min(ratios):+.1%}, {max(ratios):+.1%}) "
        f"| {calls * 1e6:,.0f} | {thread * 1e6:,.0f} | **{(calls + thread) / step:.2%}** "
        f"| {cost.journal_bytes / cost.steps:,.0f} |"
    )


def report(costs: list[Cost], threads: int, load: float) -> str:
    """The result file."""
    table, rounds = "\n".join(row(cost) for cost in costs), len(costs[0].with_it)
    return f"""# Tracking

What a step pays for being tracked, with MLflow in each of these states. An encoder of {SHAPE.layers} layers of width
{SHAPE.hidden} is trained on {ROWS} rows of {SEQ_LEN} tokens, {threads} threads, {len(METRICS)} metrics a step.

| {" | ".join(HEADER)} |
|---{"|---:" * (len(HEADER) - 1)}|
{table}

- The two sides take turns in one process, on the same batches: {rounds} rounds of {costs[0].steps // rounds} steps
  a side, of each of which the median step counts. Their ratio shows what else ran on the machine as well: where the
  least and the most are far apart, it says nothing about less than a per cent. What the thread does in a few steps
  only, such as sending, is in "both" alone.
- "Both" counts as if training stood still while the thread works; with a core to spare, or a GPU that computes, it does
  not. It is a fixed time a step, so its share is smaller where steps are longer.
- "Refusing": no process at that address. "Frozen": connections are taken and nothing is answered. A tracker that has
  just begun tries again after 10, 20, 40 seconds; one in a long outage, once a minute.
- Starting is left out: importing MLflow, and the tables of a new SQLite file, take seconds once a start.

Predicted before measuring: {PREDICTION}

{conditions("tracking.py", ("torch", "mlflow"), load)}"""


if __name__ == "__main__":
    main()
