"""The training step, against transformers' models and collator, and against the speed of the matrix products.

    python -m benchmarks.step
    python -m benchmarks.step --config base-128 base-512 --data data/books --engine

Both sides train the same model from the same weights on the same documents of mixed length, with the same optimizer and
precision, on a CPU: benchmarks/gpu_table.py measures a GPU. Documents longer than a row are cut, not truncated, on both
sides. transformers pads each document, with its fastest settings, for documents in any order and sorted by length. Each
side runs in its own process. The sides take turns in each round.
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard

from benchmarks.harness import BOOKS, options, prepare_text, ratios, run, spread, table, warn_if_busy, write_page
from benchmarks.product_rates import product_rates
from benchmarks.step_parts import PARTS, products_of_step
from benchmarks.step_sides import MEGABATCH, documents_of, serve
from benchmarks.step_work import CASES, SEED, Case, Round, Setting, Work
from data_prep.common.errors import UserError
from data_prep.format import Dataset

MEDIAN_WORDS, SIGMA = 150, 1.0  # of the log-normal lengths of documents that are cut from the bundled text
OURS, ENGINE = Setting("maskwright"), Setting("deepspeed")
TIMEOUT = 300.0  # seconds for the first step, which may compile a model


@dataclass(frozen=True)
class Measured:
    """Results of a case: rounds by title, trials of transformers' settings, parts, and rates of matrix products."""

    case: Case
    rounds: dict[str, list[Round]]
    trials: dict[str, float | None]
    parts: dict[str, float]
    gemm: dict[str, float]

    def rates(self, title: str) -> list[float]:
        return [one.rate for one in self.rounds[title]]

    @property
    def theirs(self) -> list[str]:
        """Titles: in any order, and sorted by length."""
        return [title for title in self.rounds if title.startswith("transformers")]


def main() -> None:
    args = arguments()
    warn_if_busy()
    sections = []
    with tempfile.TemporaryDirectory(prefix="step-") as folder:
        data = args.data or bundled(Path(folder))
        for name in args.config:
            sections.append(measure(CASES[name], data, args))
            print(section(sections[-1]), flush=True)
        write_page(args.out, page(sections, data, args), ("torch", "transformers", "deepspeed"))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "step")
    usual = ["mini-128", "mini-512", "base-128", "base-512"]
    parser.add_argument("--config", nargs="+", choices=[*CASES], default=usual, help="what to train")
    parser.add_argument("--data", type=Path, help="a data set folder (default: documents cut from the bundled text)")
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once")
    parser.add_argument("--steps", type=int, help="per round (default: as many as take some seconds)")
    parser.add_argument(
        "--search-minutes",
        type=float,
        default=15.0,
        help="for each config, try transformers' settings first, as long as no more time has passed (0: no search)",
    )
    parser.add_argument("--engine", action="store_true", help="also through Maskwright's engine, which is DeepSpeed")
    parser.add_argument("--compile", action="store_true", help="also Maskwright's model compiled")
    parser.add_argument("--micro", type=int, default=1, help="micro-batches of Maskwright's step")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each side")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of both sides")
    return parser.parse_args()


def bundled(folder: Path) -> Path:
    """The bundled text as a data set of documents of log-normal lengths."""
    with open(BOOKS, "rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        words = [word for line in lines for word in json.loads(line)["text"].split()]
    rng, text, first = np.random.default_rng(SEED), folder / "documents.jsonl", 0
    with open(text, "w", encoding="utf-8") as out:
        while first < len(words):
            length = max(1, round(rng.lognormal(math.log(MEDIAN_WORDS), SIGMA)))
            out.write(json.dumps({"text": " ".join(words[first : first + length])}) + "\n")
            first += length
    return prepare_text(folder, text, 8192)


def measure(case: Case, data: Path, args: argparse.Namespace) -> Measured:
    """All sides of a case, in turns."""
    work = Work(case, replace(OURS, micro=args.micro), data, "cpu", args.threads, args.steps or 1, args.precision)
    if args.steps is None:
        work = replace(work, round_steps=steps_of(work))
    best, trials = best_of_transformers(work, 60 * args.search_minutes)
    settings = [work.setting, *(one for one in best if trials.get(one.title, 1.0))]  # not those that failed
    settings += [replace(ENGINE, micro=args.micro)] * args.engine
    settings += [replace(work.setting, compiled=True)] * args.compile
    works = [replace(work, setting=setting) for setting in settings]
    rounds = in_turns(works, args.rounds)
    warn_of_losses(rounds)
    with process(work) as side:
        warm_up(side, work)
        parts = asked(side, "parts", min(3, work.round_steps))
    one, slots = rounds[work.setting.title][0], case.rows["cpu"] * case.seq_len // args.micro
    torch.set_num_threads(args.threads)
    predictions = round(case.rate * one.tokens / one.steps / args.micro)
    products = products_of_step(work, slots, predictions)
    return Measured(case, rounds, trials, parts, product_rates(products, work.device, work.half))


def in_turns(works: list[Work], count: int) -> dict[str, list[Round]]:
    """Rounds of each side. All sides live at the same time, and each round measures every side."""
    rounds: dict[str, list[Round]] = {work.setting.title: [] for work in works}
    with ExitStack() as stack:
        sides = [stack.enter_context(process(work)) for work in works]
        for side, work in zip(sides, works, strict=True):
            warm_up(side, work)
        for number in range(count):
            for side, work in zip(sides, works, strict=True):
                rounds[work.setting.title].append(asked(side, "round", work.round_steps))
            rates = ", ".join(f"{title}: {found[-1].rate:,.0f}" for title, found in rounds.items())
            print(f"{works[0].case.name}, round {number + 1}, real tokens/s: {rates}", flush=True)
    return rounds


def steps_of(work: Work) -> int:
    """As many steps as take 6 seconds, from 2 to 20."""
    with process(work) as side:
        asked(side, "round", 1)
        return min(20, max(2, math.ceil(6 / asked(side, "round", 1).seconds)))


def best_of_transformers(work: Work, seconds: float) -> tuple[list[Setting], dict[str, float | None]]:
    """The fastest settings with documents in any order and sorted by length, as its Trainer can sort them; and real
    tokens per second of all that were tried, None if one failed or took too long.

    First kinds of attention and padding; then, with the best, 4 micro-batches, autocast in bf16, and torch.compile with
    whole rows, which have one shape. No trial starts after `seconds`.
    """
    tried: dict[Setting, float | None] = {}
    short = replace(work, round_steps=max(2, work.round_steps // 2))
    end = time.monotonic() + seconds

    def best(by_length: bool) -> Setting:
        usual = Setting("transformers", by_length=by_length)
        return max(
            (one for one in tried if one.by_length == by_length), key=lambda one: tried[one] or 0.0, default=usual
        )

    def attempt(setting: Setting) -> None:
        if setting not in tried and time.monotonic() < end:
            tried[setting] = trial(replace(short, setting=setting))

    for attention in ("sdpa", "eager"):
        attempt(Setting("transformers", attention=attention))
        attempt(Setting("transformers", attention=attention, by_length=True))
    attempt(Setting("transformers", padding="row"))
    for by_length in (False, True):
        attempt(replace(best(by_length), micro=4))
        if work.precision == "bf16":
            attempt(replace(best(by_length), autocast=True))
    attempt(replace(best(False), compiled=True, padding="row"))
    return [best(False), best(True)], {setting.title: rate for setting, rate in tried.items()}


def trial(work: Work) -> float | None:
    try:
        with process(work) as side:
            warm_up(side, work)
            rate = float(asked(side, "round", work.round_steps).rate)
    except (UserError, TimeoutError) as error:
        print(f"{work.case.name}, {work.setting.title}: {str(error).strip().splitlines()[-1]}", flush=True)
        return None
    print(f"{work.case.name}, {work.setting.title}: {rate:,.0f} real tokens/s", flush=True)
    return rate


def warm_up(side: Any, work: Work) -> None:
    """The first steps, which allocate memory and compile models: one, or two rounds if shapes vary."""
    asked(side, "round", 1)
    if work.setting.compiled:
        asked(side, "round", work.round_steps)
        asked(side, "round", work.round_steps)


@contextmanager
def process(work: Work) -> Iterator[Any]:
    """The pipe to a side in its own process."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=serve, args=(theirs, work))
    child.start()
    theirs.close()
    try:
        yield ours
        ours.send(None)
        child.join(30)
    finally:
        child.kill()
        child.join()


def asked(side: Any, measurement: str, steps: int) -> Any:
    """The answer of a side to one of step_sides.MEASUREMENTS."""
    try:
        side.send((measurement, steps))
        if not side.poll(TIMEOUT):
            raise TimeoutError(f"no answer in {TIMEOUT:.0f} s")
        answer = side.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise UserError("a side has died (out of memory?)") from None
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def warn_of_losses(rounds: dict[str, list[Round]]) -> None:
    """Warn if the sides do not learn the same: their mean losses differ by 10% or more."""
    losses = {title: statistics.fmean(found[0].losses) for title, found in rounds.items()}
    if max(losses.values()) > 1.1 * min(losses.values()):
        print(f"warning: the sides do not do the same work; their losses are {losses}", flush=True)


def summary(sections: list[Measured]) -> str:
    """A table of all cases."""
    header = ["", "Maskwright, real tokens/s", "transformers, any order", "ratio", "sorted by length", "ratio"]
    rows = []
    for one in sections:
        ours = next(iter(one.rounds))
        rate = tflops(one.rounds[ours])
        cells = [one.case.name, spread(one.rates(ours), ",.0f")]
        for theirs in one.theirs:
            cells += [spread(one.rates(theirs), ",.0f"), spread(ratios(one.rates(ours), one.rates(theirs)))]
        rows.append([*cells, f"{rate:.3g}", f"{rate / max(one.gemm.values()):.0%}"])
    return table([*header, "TFLOP/s", "of the peak"], *rows)


def section(one: Measured) -> str:
    """All results of one case."""
    header = ["", "ms per step", "real tokens/s (least to most)", "real tokens per step", "slots filled"]
    header += ["sum of squared lengths", "TFLOP/s", "of the peak", "peak memory"]
    lines = []
    for title, rounds in one.rounds.items():
        steps = sum(each.steps for each in rounds)
        total = {name: sum(getattr(each, name) for each in rounds) for name in ("tokens", "slots", "pairs")}
        step, rate = statistics.median(each.seconds / each.steps for each in rounds), tflops(rounds)
        cells = [title, f"{step * 1e3:,.1f}", spread(one.rates(title), ",.0f"), f"{total['tokens'] / steps:,.0f}"]
        cells += [f"{total['tokens'] / total['slots']:.1%}", f"{total['pairs'] / steps:,.0f}", f"{rate:.3g}"]
        cells += [f"{rate / max(one.gemm.values()):.0%}", f"{max(each.peak_bytes for each in rounds) / 2**30:.2f} GiB"]
        lines.append(cells)
    parts = [f"### {one.case.name}", table(header, *lines), floor(one), parts_table(one), trials_table(one)]
    return "\n\n".join(parts) + "\n"


def floor(one: Measured) -> str:
    best = max(one.gemm.values())
    first = next(iter(one.rounds.values()))
    steps, flops = sum(each.steps for each in first), sum(each.flops for each in first)
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in one.gemm.items())
    return (
        f"Lower bound: {flops / steps / 1e12:.3g} TFLOP per step at {best:.3g} TFLOP/s, the best rate of its matrix "
        f"products here, take {flops / steps / best / 1e9:,.1f} ms. Rates: {rates}."
    )


def parts_table(one: Measured) -> str:
    names = [name for name in PARTS if one.parts[name]]
    threads = ("data", "masking")  # in the loader's thread
    cells = [f"{one.parts[name]:.1%}" for name in names] + [f"{one.parts[name] * 1e3:.1f} ms" for name in threads]
    return table([*names, "data, in a thread", "masking, in a thread"], cells, left=0)


def trials_table(one: Measured) -> str:
    if not one.trials:
        return "transformers has its usual settings; no others were tried."
    tried = sorted(one.trials.items(), key=lambda item: -(item[1] or 0))
    rows = [[title, f"{rate:,.0f}" if rate else "failed"] for title, rate in tried]
    return table(["transformers, tried", "real tokens/s"], *rows)


def tflops(rounds: list[Round]) -> float:
    return statistics.median(one.flops / one.seconds for one in rounds) / 1e12


def page(sections: list[Measured], data: Path, args: argparse.Namespace) -> str:
    totals, lengths = Dataset(data).manifest.totals, {}
    for one in sections:
        rows = [len(row) for row in documents_of(Dataset(data), one.case.seq_len)]
        lengths[one.case.seq_len] = f"{statistics.fmean(rows):.0f} on average in rows of {one.case.seq_len}"
    source = "given documents"
    if args.data is None:
        source = f"the bundled text, in documents of log-normal lengths, median {MEDIAN_WORDS} words, sigma {SIGMA}"
    tables = "\n".join(section(one) for one in sections)
    return f"""# The training step

On a CPU, {args.threads} threads a side, {args.precision}. Medians of {args.rounds} rounds, in turns, each side in its
own process; padding does not count. Documents: {source}: {totals.documents:,} of
{totals.tokens / totals.documents:,.0f} tokens on average; cut to rows, with [CLS] and [SEP],
{"; ".join(lengths.values())}.

{summary(sections)}

- "Of the peak": operations that the model needs for real tokens and predictions (`pretrain/model/model_costs.py`),
  relative to the best measured rate of a product of the model's matrices.
- Both sides: the same initial weights, no dropout, torch's fused AdamW, gradients clipped to 1, a vocabulary of 30,522
  (ModernBERT: 50,368) for any tokenizer of the data, 15% predicted (ModernBERT: 30%).
- Maskwright: a step as in a run, but without DeepSpeed; "deepspeed" is with it. Documents share rows without seeing
  each other.
- transformers: one document, or one piece of a long document, per row; on average as many real tokens per step. The
  fastest setting of the trials below counts, for documents in any order and sorted by length as LengthGroupedSampler
  does, {MEGABATCH} batches at a time. ModernBERT's head computes only predicted tokens (sparse_prediction); BERT's has
  no such setting.
- Parts: shares of a step under torch.profiler, in another run. Attention includes its projections. The loader works in
  a thread during the step.

{tables}
"""


if __name__ == "__main__":
    run(main)
