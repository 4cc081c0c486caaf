"""Cost of tracking for a training step: with and without it, in turns, in one process, on the same batches.

    python -m benchmarks.tracking
    python -m benchmarks.tracking --rounds 9 --steps 30 --threads 1

Tracking is what the loop does: a journal line per step, and a thread that sends it to MLflow. MLflow is a SQLite file,
a server, or an unreachable server: refusing, frozen, answering 500. Other work on the machine disturbs the ratio of the
times, so it also measures tracking itself: the time of the loop's calls and the processor time of the thread.
"""

import contextlib
import itertools
import logging
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.harness import options, ratios, spread, table, warn_if_busy, write_page
from pretrain.model import Encoder, EncoderShape
from pretrain.run import Journal
from pretrain.tracking import RunRecord, Target, Tracker
from tests.support.mlflow_server import Proxy, Server, free_port

ROWS, SEQ_LEN, VOCAB = 8, 128, 8192
SHAPE = EncoderShape(
    vocab_size=VOCAB, layers=4, hidden=256, heads=4, intermediate=1024, max_positions=SEQ_LEN, pad_id=0
)
METRICS = (
    *("train/loss", "train/masked_accuracy", "train/learning_rate", "train/mask_rate", "train/grad_norm"),
    *("data/epoch", "data/seq_len", "speed/tokens_per_second", "speed/data_wait", "speed/step_seconds", "speed/tflops"),
)
CONNECTED = ("SQLite", "server")
HEADER = (
    *("MLflow is", "ms per step without", "median step with it, relative to without (least to most)"),
    *("us per step, loop's calls", "us per step, thread's processor time", "both, share of the step"),
    "journal, bytes per step",
)


@dataclass
class Cost:
    """Seconds of each round's median step with and without tracking; of all steps, seconds of the loop's calls and
    processor time of the thread."""

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
        found = self._model(**self._fixed, **batch, seq_len=SEQ_LEN)
        loss = found.loss / len(batch["labels"])
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())


def main() -> None:
    parser = options(__doc__, "tracking")
    parser.add_argument("--rounds", type=int, default=7, help="of each side (%(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="per round and side (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of the training step (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=PLACES, help="only these")
    arguments = parser.parse_args()
    warn_if_busy()
    torch.set_num_threads(arguments.threads)
    logging.disable(logging.WARNING)
    with contextlib.suppress(Exception):  # no server; imports MLflow, which takes seconds
        Target(f"http://127.0.0.1:{free_port()}", "nowhere").connect()
    training = Training()
    for number in range(5):
        training.step(number)
    costs = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder, place(name, Path(folder)) as uri:
            costs.append(measure(name, uri, Path(folder), training, arguments.rounds, arguments.steps))
        print(row(costs[-1]), flush=True)
    write_page(arguments.out, page(costs, arguments.threads), ("torch", "mlflow"))


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
        elif name == "frozen":  # the kernel accepts connections for a frozen process, which never answers
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        else:
            yield "none" if name == "journal alone" else f"http://127.0.0.1:{free_port()}"


def measure(name: str, uri: str, folder: Path, training: Training, rounds: int, steps: int) -> Cost:
    """Rounds in turns. Each round with tracking resumes the run and closes its tracker."""
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
    time.sleep(3)  # imports, tables of a new database, first connection: once per start
    while cost.name in CONNECTED and not ((record := RunRecord.load(run)) and record.run_id):
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
        while (record := RunRecord.load(run)) is None or record.step < cost.steps:
            time.sleep(0.1)
    cost.thread += _thread_seconds(tracker) - used
    journal.close()
    tracker.close(60 if cost.name in CONNECTED else 0.1, "FINISHED")
    cost.journal_bytes = (run / "journal.jsonl").stat().st_size


def _median_seconds(step: Callable[[int], object], steps: int) -> float:
    """Seconds of the median step, so that short interruptions do not count."""
    ends = [time.perf_counter()]
    for number in range(steps):
        step(number)
        ends.append(time.perf_counter())
    return statistics.median(end - begin for begin, end in itertools.pairwise(ends))


def _thread_seconds(tracker: Tracker) -> float:
    """Processor time of the tracker's thread."""
    ident = tracker._thread.ident
    return time.clock_gettime(time.pthread_getcpuclockid(ident)) if ident else 0.0


def row(cost: Cost) -> list[str]:
    more = [ratio - 1 for ratio in ratios(cost.with_it, cost.without)]
    step = statistics.median(cost.without)
    calls, thread = cost.calls / cost.steps, cost.thread / cost.steps
    share = f"**{(calls + thread) / step:.2%}**"
    cells = [
        cost.name,
        f"{step * 1e3:,.0f}",
        spread(more, "+.1%"),
        f"{calls * 1e6:,.0f}",
        f"{thread * 1e6:,.0f}",
        share,
    ]
    return [*cells, f"{cost.journal_bytes / cost.steps:,.0f}"]


def page(costs: list[Cost], threads: int) -> str:
    rounds = len(costs[0].with_it)
    return f"""# Tracking

Cost of tracking per step, with MLflow in each of these states. An encoder of {SHAPE.layers} layers of width
{SHAPE.hidden} is trained on {ROWS} rows of {SEQ_LEN} tokens, {threads} threads, {len(METRICS)} metrics per step.

{table(HEADER, *map(row, costs))}

- The two sides take turns in one process, on the same batches: {rounds} rounds of {costs[0].steps // rounds} steps per
  side, of which the median counts. Other work on the machine changes their ratio: where least and most are far apart,
  it does not show differences below a per cent. Work that the thread does in few steps, such as sending, is only in
  "both".
- "Both" assumes that training waits while the thread works. With a free core, or a GPU that computes, it does not. The
  time per step is fixed, so its share is smaller for longer steps.
- "Refusing": no process at the address. "Frozen": the server accepts connections but does not answer. A new tracker
  tries again after 10, 20, 40 seconds; in a long outage, once a minute.
- Without the start: importing MLflow and creating the tables of a new SQLite file take seconds once per start.
"""


if __name__ == "__main__":
    main()
