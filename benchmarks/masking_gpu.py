"""How long a GPU takes to mask a stream, beside what a launch of any kernel takes.

    python benchmarks/masking_gpu.py

Masks 64k tokens in rows of several lengths by tokens, whole words and spans, launched one by one and from a CUDA graph.
The floor is a Triton kernel that does nothing, with the same grid. Needs a GPU. Prints a table and writes it to --out.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the packages of this checkout, installed or not

from benchmarks.machine import conditions, warn_if_busy
from data_prep.files import atomic_writer
from pretrain.masking import (
    WORD_START,
    Masked,
    MaskedTokens,
    Replacement,
    Rows,
    Spans,
    Strategy,
    TokenUnits,
    Vocabulary,
    WholeWords,
)
from pretrain.masking.selection import fixed

TOKENS = 1 << 16
SEQ_LENS = (128, 512, 1024, 8192)
STRATEGIES: dict[str, Strategy] = {"token": TokenUnits(), "whole_word": WholeWords(), "span": Spans(0.2, 10)}
RATE = 0.15
VOCABULARY = Vocabulary(size=30522, pad=0, cls=101, sep=102, mask=103, special_ids=frozenset({0, 100, 101, 102, 103}))
DOCUMENT = 300  # tokens of a document, specials included
WORD_STARTS = 0.75  # share of tokens that begin a word
WARM_UP, ROUNDS, CALLS = 10, 15, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/masking_gpu.md")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU, and torch finds none")
    load = warn_if_busy()
    report = f"""# Masking on a GPU

{TOKENS:,} tokens at a rate of {RATE}; microseconds a call, medians of {ROUNDS} rounds of {CALLS} calls between two
CUDA events, with the fastest and the slowest round. Each case was compared with the oracle on the CPU first.

- launched: calls of `DeviceMasking` one after the other; where the GPU is faster than the host's part of a call, that
  is what is measured.
- graph: the same calls in one CUDA graph: the GPU's own time, and what it takes from one kernel to the next.
- floor: a Triton kernel that does nothing, launched and in a graph in the same way.

On one {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}.

{table()}

"""
    report += conditions("masking_gpu.py", ("torch", "triton", "numpy"), load)
    with atomic_writer(args.out) as file:
        file.write(report.encode())
    print(report)


def table() -> str:
    """Times of all strategies and lengths of rows, as a Markdown table."""
    lines = [
        "| seq_len | rows | units | launched | graph | floor, launched | floor, graph |",
        "|---:|---:|---|---:|---:|---:|---:|",
    ]
    for seq_len in SEQ_LENS:
        floor = nothing(TOKENS // seq_len)
        cells = [spread(rounds(floor)), spread(rounds(in_graph(floor), CALLS))]
        for name, strategy in STRATEGIES.items():
            mask = masking_of(strategy, seq_len)
            mine = [spread(rounds(mask)), spread(rounds(in_graph(mask), CALLS))]
            lines.append(f"| {seq_len:,} | {TOKENS // seq_len} | {name} | {' | '.join([*mine, *cells])} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def masking_of(strategy: Strategy, seq_len: int) -> Callable[[], object]:
    """A call that masks the stream; its result has been compared with the oracle's."""
    from pretrain.masking.gpu_masking import DeviceMasking

    objective = MaskedTokens(VOCABULARY, [(strategy, 1.0)], RATE, Replacement(), seed=0, purpose="benchmark")
    rows = stream(seq_len)
    units = objective.units(rows, VOCABULARY.is_ordinary[rows.tokens])
    bits = None if units is None else torch.from_numpy(units.bits).cuda()
    tokens, places = torch.from_numpy(rows.tokens).cuda(), torch.from_numpy(rows.places).cuda()
    rate = torch.tensor([fixed(RATE)], device="cuda")
    mask = DeviceMasking(objective, torch.device("cuda"))
    out = mask.empty(*rows.tokens.shape)
    mask(tokens, bits, places, rate, out)
    check(Masked(*(tensor.cpu().numpy() for tensor in out)), objective(rows, RATE))
    return lambda: mask(tokens, bits, places, rate, out)


def check(found: Masked, wanted: Masked) -> None:
    for name in ("tokens", "positions", "labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


def stream(seq_len: int) -> Rows:
    """Rows full of documents, every one of DOCUMENT tokens but for what the rows' ends cut."""
    rng = np.random.default_rng(0)
    n_rows = TOKENS // seq_len
    tokens = rng.choice(VOCABULARY.ordinary_ids, size=(n_rows, seq_len))
    tokens[:, ::DOCUMENT] = VOCABULARY.cls
    tokens[:, DOCUMENT - 1 :: DOCUMENT] = VOCABULARY.sep
    tokens[:, -1] = VOCABULARY.sep
    places = np.zeros((n_rows, 3), dtype=np.int64)
    places[:, 2] = np.arange(n_rows)
    return Rows(tokens, places, (rng.random(tokens.shape) < WORD_STARTS) * np.uint8(WORD_START))


def nothing(programs: int) -> Callable[[], object]:
    """A call that launches so many programs, which do nothing."""
    import triton

    @triton.jit
    def empty():
        pass

    return lambda: empty[(programs,)]()


def in_graph(call: Callable[[], object]) -> Callable[[], object]:
    """A call that replays a CUDA graph of CALLS calls."""
    call()  # compiles, which a capture does not allow
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph.replay


def rounds(call: Callable[[], object], calls_in_one: int = 1) -> list[float]:
    """Microseconds a call in each round; `calls_in_one` calls are made by each of `call`."""
    times = []
    for number in range(WARM_UP + ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS // calls_in_one):
            call()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return times


def spread(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"


if __name__ == "__main__":
    main()
