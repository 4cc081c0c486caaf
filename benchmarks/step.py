"""The training step: Maskwright's against that of transformers' own models and collator, and against what is possible.

    python benchmarks/step.py
    python benchmarks/step.py --config base-128 base-512 --data data/books --engine

Both sides train the same model from the same weights on the same documents of mixed length, with the same optimizer, on
a CPU (fp32) or a GPU (bf16). Documents longer than a row are cut, not truncated, on both sides; transformers pads each
to a row, in the way that turns out fastest of those it offers, with documents in any order and sorted by length. Each
side has a process of its own, and they take turns.
Prints tables and writes them to --out.
"""

import argparse
import io
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

import numpy as np
import torch
import zstandard

from benchmarks.machine import conditions, warn_if_busy
from benchmarks.step_parts import PARTS, gemm_tflops
from benchmarks.step_sides import MEGABATCH, documents_of, serve
from benchmarks.step_work import CASES, SEED, Case, Round, Setting, Work
from data_prep.errors import UserError
from data_prep.files import atomic_writer
from data_prep.format import Dataset
from pretrain.model import peak_tflops

MEDIAN_WORDS, SIGMA = 150, 1.0  # of the log-normal lengths of documents that are cut from the bundled text
OURS, ENGINE = Setting("maskwright"), Setting("deepspeed")
USUAL = [Setting("transformers"), Setting("transformers", by_length=True)]  # what one gets without a search
PATIENCE = 600.0  # seconds for the first step, in which a model may be compiled


@dataclass(frozen=True)
class Measured:
    """All that was measured of a case: rounds by title, trials of transformers' settings, parts, and GEMM rates."""

    case: Case
    rounds: dict[str, list[Round]]
    trials: dict[str, float | None]
    parts: dict[str, float]
    gemm: dict[str, float]

    def rates(self, title: str) -> list[float]:
        return [one.rate for one in self.rounds[title]]

    @property
    def theirs(self) -> list[str]:
        """In any order, and sorted by length."""
        return [title for title in self.rounds if title.startswith("transformers")]


def main() -> None:
    args = arguments()
    load = warn_if_busy()
    sections = []
    with tempfile.TemporaryDirectory(prefix="step-") as folder:
        data = args.data or bundled(Path(folder))
        for name in args.config:
            sections.append(measure(CASES[name], data, args))
            print(section(sections[-1], args.device), flush=True)
        report = report_of(sections, data, args) + conditions("step.py", ("torch", "transformers", "deepspeed"), load)
    print(table(sections, args.device))
    with atomic_writer(args.out) as file:
        file.write(report.encode())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    several = {"cpu": ["mini-128", "mini-512", "base-128", "base-512"], "cuda": [*CASES]}
    parser.add_argument("--config", nargs="+", choices=[*CASES], default=several[device], help="what to train")
    parser.add_argument("--data", type=Path, help="a data set folder; documents cut from the bundled text if not given")
    parser.add_argument("--rounds", type=int, default=5, help="each measures every side once")
    parser.add_argument("--steps", type=int, help="of a round; as many as take some seconds if not given")
    parser.add_argument(
        "--search", action=argparse.BooleanOptionalAction, default=True, help="try transformers' settings first"
    )
    parser.add_argument("--engine", action="store_true", help="also through Maskwright's engine, which is DeepSpeed")
    parser.add_argument("--compile", action="store_true", help="also Maskwright's model compiled")
    parser.add_argument("--fused", action="store_true", help="also with its Triton kernels, which need a GPU")
    parser.add_argument("--micro", type=int, default=1, help="micro-batches of Maskwright's step")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each side")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/step.md")
    args = parser.parse_args()
    args.device = device
    return args


def bundled(folder: Path) -> Path:
    """The bundled text as a data set, with a tokenizer of its own, cut into documents of log-normal lengths."""
    with open(ROOT / "configs/demo/books.jsonl.zst", "rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        words = [word for line in lines for word in json.loads(line)["text"].split()]
    rng, text, first = np.random.default_rng(SEED), folder / "documents.jsonl", 0
    with open(text, "w", encoding="utf-8") as out:
        while first < len(words):
            length = max(1, round(rng.lognormal(math.log(MEDIAN_WORDS), SIGMA)))
            out.write(json.dumps({"text": " ".join(words[first : first + length])}) + "\n")
            first += length
    tokenizer, data = folder / "tokenizer", folder / "data"
    kind = ("--kind", "wordpiece", "--vocab-size", 8192)
    for command in (
        ("tokenizer", "train", "--input", text, *kind, "--out", tokenizer),
        ("prep", "run", "--input", text, "--tokenizer", tokenizer, "--valid-fraction", 0, "--out", data),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "launchers.cli", *map(str, command)], cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            raise UserError(f"the bundled text cannot be prepared:\n{done.stderr[-4000:]}")
    return data


def measure(case: Case, data: Path, args: argparse.Namespace) -> Measured:
    """All sides of a case, in turns."""
    work = Work(case, replace(OURS, micro=args.micro), data, args.device, args.threads, args.steps or 1)
    if args.steps is None:
        work = replace(work, round_steps=steps_of(work))
    best, trials = best_of_transformers(work) if args.search else (USUAL, {})
    settings = [work.setting, *best]
    settings += [replace(ENGINE, micro=args.micro)] * args.engine
    settings += [replace(work.setting, compiled=True)] * args.compile
    settings += [replace(work.setting, fused=True)] * args.fused
    rounds: dict[str, list[Round]] = {setting.title: [] for setting in settings}
    with ExitStack() as stack:
        sides = {s.title: stack.enter_context(process(replace(work, setting=s))) for s in settings}
        for side in sides.values():
            warm_up(side, work)
        for number in range(args.rounds):
            for title, side in sides.items():
                rounds[title].append(asked(side, work.round_steps))
            rates = ", ".join(f"{title}: {found[-1].rate:,.0f}" for title, found in rounds.items())
            print(f"{case.name}, round {number + 1}, real tokens/s: {rates}", flush=True)
        check_losses(rounds)
        parts = asked(sides[work.setting.title], -min(3, work.round_steps))
    one, slots = rounds[work.setting.title][0], case.rows[args.device] * case.seq_len // args.micro
    torch.set_num_threads(args.threads)
    predictions = round(case.rate * one.tokens / one.steps / args.micro)
    return Measured(case, rounds, trials, parts, gemm_tflops(work.shape, slots, predictions, args.device))


def steps_of(work: Work) -> int:
    """As many steps as take 6 seconds, from 2 to 20; on a GPU 40."""
    if work.device == "cuda":
        return 40
    with process(work) as side:
        asked(side, 1)
        return min(20, max(2, math.ceil(6 / asked(side, 1).seconds)))


def best_of_transformers(work: Work) -> tuple[list[Setting], dict[str, float | None]]:
    """The fastest setting with documents in any order, as its collator is called by itself, and the fastest with those
    of like length together, as its Trainer can sort them; and real tokens a second of all that were tried, None for
    one that failed or took too long.

    First ways of padding and kinds of attention; then, from the best on, smaller micro-batches, autocast on a GPU, and
    torch.compile, for which whole rows, always of one shape, have another chance.
    """
    tried: dict[Setting, float | None] = {}
    short = replace(work, round_steps=max(2, work.round_steps // 2))

    def best(by_length: bool) -> Setting:
        return max((one for one in tried if one.by_length == by_length), key=lambda one: tried[one] or 0.0)

    def attempt(setting: Setting) -> None:
        if setting not in tried:
            tried[setting] = trial(replace(short, setting=setting))

    on_gpu = ["flash_attention_2"] if work.device == "cuda" else []  # which fails unless its package is there
    for attention in ("sdpa", "eager", *on_gpu):
        attempt(Setting("transformers", attention=attention))
        attempt(Setting("transformers", attention=attention, by_length=True))
    attempt(Setting("transformers", padding="row"))
    for by_length in (False, True):
        attempt(replace(best(by_length), micro=4))
        if work.device == "cuda":
            attempt(replace(best(by_length), autocast=True))
            attempt(replace(best(by_length), compiled=True))
    attempt(replace(best(False), compiled=True, padding="row"))
    return [best(False), best(True)], {setting.title: rate for setting, rate in tried.items()}


def trial(work: Work) -> float | None:
    try:
        with process(work) as side:
            warm_up(side, work)
            rate = float(asked(side, work.round_steps).rate)
    except (UserError, TimeoutError) as error:
        print(f"{work.case.name}, {work.setting.title}: {str(error).strip().splitlines()[-1]}", flush=True)
        return None
    print(f"{work.case.name}, {work.setting.title}: {rate:,.0f} real tokens/s", flush=True)
    return rate


def warm_up(side: Any, work: Work) -> None:
    """The first steps, in which memory is claimed and models are compiled: one, or where shapes vary a round or two."""
    asked(side, 1)
    if work.device == "cuda" or work.setting.compiled:
        asked(side, work.round_steps)
        asked(side, work.round_steps)


@contextmanager
def process(work: Work) -> Iterator[Any]:
    """A side in a process of its own, as the pipe to it."""
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


def asked(side: Any, steps: int) -> Any:
    """What a side answers."""
    try:
        side.send(steps)
        if not side.poll(PATIENCE):
            raise TimeoutError(f"no answer in {PATIENCE:.0f} s")
        answer = side.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise UserError("a side has died (out of memory?)") from None
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


def check_losses(rounds: dict[str, list[Round]]) -> None:
    """The sides learn the same: their losses over all rounds differ little."""
    losses = {title: statistics.fmean(found[0].losses) for title, found in rounds.items()}
    if max(losses.values()) > 1.1 * min(losses.values()):
        raise UserError(f"the sides do not do the same work; their losses are {losses}")


def table(sections: list[Measured], device: str) -> str:
    """All cases in short."""
    lines = [
        "| | Maskwright, real tokens/s | transformers, any order | faster by (least, most) | transformers, sorted by "
        "length | faster by (least, most) | TFLOP/s | of the peak |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sections:
        ours = next(iter(one.rounds))
        rate = tflops(one.rounds[ours])
        cells = [one.case.name, spread(one.rates(ours))]
        for theirs in one.theirs:
            ratios = [mine / other for mine, other in zip(one.rates(ours), one.rates(theirs), strict=True)]
            cells.append(spread(one.rates(theirs)))
            cells.append(f"{statistics.median(ratios):.2f} x ({min(ratios):.2f}, {max(ratios):.2f})")
        cells += [f"{rate:.3g}", f"{rate / peak(one, device):.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def section(one: Measured, device: str) -> str:
    """All of one case."""
    lines = [
        f"### {one.case.name}",
        "",
        "| | ms a step | real tokens/s (least, most) | real tokens a step | slots filled | sum of squared lengths "
        "| TFLOP/s | of the peak | peak memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, rounds in one.rounds.items():
        steps = sum(each.steps for each in rounds)
        total = {name: sum(getattr(each, name) for each in rounds) for name in ("tokens", "slots", "pairs")}
        step, rate = statistics.median(each.seconds / each.steps for each in rounds), tflops(rounds)
        lines.append(
            f"| {title} | {step * 1e3:,.1f} | {spread(one.rates(title))} | {total['tokens'] / steps:,.0f} "
            f"| {total['tokens'] / total['slots']:.1%} | {total['pairs'] / steps:,.0f} | {rate:.3g} "
            f"| {rate / peak(one, device):.0%} | {max(each.peak_bytes for each in rounds) / 2**30:.2f} GiB |"
        )
    return "\n".join([*lines, "", floor(one), "", *parts_table(one), "", *trials_table(one)]) + "\n"


def floor(one: Measured) -> str:
    best = max(one.gemm.values())
    first = next(iter(one.rounds.values()))
    steps, flops = sum(each.steps for each in first), sum(each.flops for each in first)
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in one.gemm.items())
    return (
        f"Floor: {flops / steps / 1e12:.3g} TFLOP a step at {best:.3g} TFLOP/s, the best rate of a product of its "
        f"matrices here, take {flops / steps / best / 1e9:,.1f} ms. Rates: {rates}."
    )


def parts_table(one: Measured) -> list[str]:
    names = [name for name in PARTS if one.parts[name]]
    return [
        f"| {' | '.join(names)} | data, beside | masking, beside |",
        f"|{'---:|' * (len(names) + 2)}",
        f"| {' | '.join(f'{one.parts[name]:.1%}' for name in names)} "
        f"| {one.parts['data'] * 1e3:.1f} ms | {one.parts['masking'] * 1e3:.1f} ms |",
    ]


def trials_table(one: Measured) -> list[str]:
    if not one.trials:
        return ["transformers' usual settings; no others were tried here."]
    tried = sorted(one.trials.items(), key=lambda item: -(item[1] or 0))
    cells = [f"| {title} | {f'{rate:,.0f}' if rate else 'failed'} |" for title, rate in tried]
    return ["| transformers, tried | real tokens/s |", "|---|---:|", *cells]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}, {max(values):,.0f})"


def tflops(rounds: list[Round]) -> float:
    return statistics.median(one.flops / one.seconds for one in rounds) / 1e12


def peak(one: Measured, device: str) -> float:
    """10**12 operations a second: by the device's data sheet, or the best rate of a matrix product measured here."""
    known = peak_tflops(torch.cuda.get_device_name()) if device == "cuda" else None
    return float(known or max(one.gemm.values()))


def report_of(sections: list[Measured], data: Path, args: argparse.Namespace) -> str:
    totals, lengths = Dataset(data).manifest.totals, {}
    for one in sections:
        rows = [len(row) for row in documents_of(Dataset(data), one.case.seq_len)]
        lengths[one.case.seq_len] = f"{statistics.fmean(rows):.0f} on average in rows of {one.case.seq_len}"
    source = "given documents"
    if args.data is None:
        source = f"the bundled text, in documents of log-normal lengths, median {MEDIAN_WORDS} words, sigma {SIGMA}"
    cuda = args.device == "cuda"
    where = f"one {torch.cuda.get_device_name()}, bf16" if cuda else f"a CPU, {args.threads} threads a side, fp32"
    peak_is = "the device's dense bf16 peak" if cuda else "the best rate of a product of the model's matrices, measured"
    tables = "\n".join(section(one, args.device) for one in sections)
    return f"""# The training step

On {where}. Medians of {args.rounds} rounds in which the sides take turns, each in a process of its own; padding
does not count. Documents: {source}: {totals.documents:,} of {totals.tokens / totals.documents:,.0f} tokens on
average; cut to rows, with [CLS] and [SEP], {"; ".join(lengths.values())}.

{table(sections, args.device)}
- "Of the peak": operations that the model needs for real tokens and predictions (`pretrain/model/model_costs.py`), to
  {peak_is}.
- Both sides: the same initial weights, no dropout, torch's fused AdamW, gradients clipped to 1, a vocabulary of 30,522
  (ModernBERT: 50,368) whatever the data's tokenizer has, 15% predicted (ModernBERT: 30%).
- Maskwright: a step as in a run, but for DeepSpeed; "deepspeed" is with it. Documents share rows and do not see each
  other.
- transformers: each document, or piece of a long one, a row; as many documents a step as have as many real tokens on
  average. Of the settings below, if others were tried, the fastest in a trial counts: of those that take documents
  in any order, as its collator does by itself, and of those that sort them by length as its LengthGroupedSampler
  does, {MEGABATCH} batches together, which makes batches of like documents. ModernBERT's head sees predicted tokens
  alone, as it offers; BERT's has no such setting.
- Parts: shares of a step under torch.profiler, in a run of its own; the backward pass is attributed by autograd's
  numbers. Attention includes its projections. The loader works beside the step, in a thread.

{tables}
"""


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
