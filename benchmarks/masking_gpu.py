"""Time to mask a stream on a GPU, against the time to launch a kernel that does nothing.

    python -m benchmarks.masking_gpu

Masks 64k tokens in rows of several lengths by tokens, whole words and spans, launched one by one and from a CUDA graph.
The floor is an empty Triton kernel with the same grid. Needs a GPU.
"""

from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness import options, run, spread, table, warn_if_busy, write_page
from data_prep.errors import UserError
from pretrain.masking import Masked, MaskedTokens, Rows, TokenFlag, Vocabulary
from pretrain.masking.masked_tokens import Replacement
from pretrain.masking.selection import fixed
from pretrain.masking.units import Spans, Strategy, TokenUnits, WholeWords

TOKENS = 1 << 16
SEQ_LENS = (128, 512, 1024, 8192)
STRATEGIES: dict[str, Strategy] = {"token": TokenUnits(), "whole_word": WholeWords(), "span": Spans(0.2, 10)}
RATE = 0.15
VOCABULARY = Vocabulary(size=30522, pad=0, cls=101, sep=102, mask=103, special_ids=frozenset({0, 100, 101, 102, 103}))
DOCUMENT = 300  # tokens of a document, specials included
WORD_STARTS = 0.75  # share of tokens that begin a word
WARM_UP, ROUNDS, CALLS = 10, 15, 200


def main() -> None:
    parser = options(__doc__, "masking_gpu")
    args = parser.parse_args()
    require_gpu()
    page = f"""# Masking on a GPU

{TOKENS:,} tokens at a rate of {RATE}; microseconds per call, medians of {ROUNDS} rounds of {CALLS} calls between two
CUDA events, with the fastest and the slowest round. Each case was compared with the oracle on the CPU first.

- launched: calls of `DeviceMasking` in sequence. If the host's part of a call is slower than the GPU, it is measured.
- graph: the same calls in one CUDA graph: the GPU's time, including the gap between kernels.
- floor: a Triton kernel that does nothing, launched and in a graph in the same way.

On one {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}.

{times()}
"""
    write_page(args.out, page, ("torch", "triton", "numpy"))


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise UserError("this benchmark needs a GPU, but torch finds none")
    warn_if_busy()


def times() -> str:
    """A table of all strategies and row lengths."""
    lines = []
    for seq_len in SEQ_LENS:
        floor = nothing(TOKENS // seq_len)
        cells = [microseconds(floor), microseconds(in_graph(floor), CALLS)]
        for name, strategy in STRATEGIES.items():
            mask = masking_of(strategy, seq_len)
            lines.append([f"{seq_len:,}", f"{TOKENS // seq_len}", name, microseconds(mask)])
            lines[-1] += [microseconds(in_graph(mask), CALLS), *cells]
            print(lines[-1], flush=True)
    return table(["seq_len", "rows", "units", "launched", "graph", "floor, launched", "floor, graph"], *lines)


def masking_of(strategy: Strategy, seq_len: int) -> Callable[[], object]:
    """A call that masks the stream. Its result is compared with the CPU's first."""
    from pretrain.masking.gpu_masking import DeviceMasking

    objective = MaskedTokens(VOCABULARY, [(strategy, 1.0)], RATE, Replacement(), seed=0, purpose="benchmark")
    rows = stream(seq_len)
    units = objective.units(rows, VOCABULARY.is_ordinary[rows.tokens])
    bits = None if units is None else torch.from_numpy(units.bits).cuda()
    tokens, places = torch.from_numpy(rows.tokens).cuda(), torch.from_numpy(rows.row_ids).cuda()
    rate = torch.tensor([fixed(RATE)], device="cuda")
    mask = DeviceMasking(objective, torch.device("cuda"))
    out = mask.empty(*rows.tokens.shape)
    mask(tokens, bits, places, rate, out)
    masked, expected = Masked(*(tensor.cpu().numpy() for tensor in out)), objective(rows, RATE)
    for name in ("tokens", "positions", "labels"):
        np.testing.assert_array_equal(getattr(masked, name), getattr(expected, name), err_msg=name)
    return lambda: mask(tokens, bits, places, rate, out)


def stream(seq_len: int) -> Rows:
    """Full rows of documents of DOCUMENT tokens; the last one of a row is cut."""
    rng = np.random.default_rng(0)
    n_rows = TOKENS // seq_len
    tokens = rng.choice(VOCABULARY.ordinary_ids, size=(n_rows, seq_len))
    tokens[:, ::DOCUMENT] = VOCABULARY.cls
    tokens[:, DOCUMENT - 1 :: DOCUMENT] = VOCABULARY.sep
    tokens[:, -1] = VOCABULARY.sep
    places = np.zeros((n_rows, 3), dtype=np.int64)
    places[:, 2] = np.arange(n_rows)
    return Rows(tokens, places, (rng.random(tokens.shape) < WORD_STARTS) * np.uint8(TokenFlag.WORD_START))


def nothing(programs: int) -> Callable[[], object]:
    """A call that launches this many programs, which do nothing."""
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


def microseconds(call: Callable[[], object], repeats: int = 1) -> str:
    """Microseconds per call: median, fastest and slowest round; `call` makes `repeats` calls."""
    times = []
    for number in range(WARM_UP + ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS // repeats):
            call()
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return spread(times, ".1f")


if __name__ == "__main__":
    run(main)
