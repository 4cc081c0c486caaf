"""The masking kernel in tests: rows of every kind, and a process for Triton's interpreter.

Triton decides when it is imported whether kernels are interpreted. So they run in a process that has not imported it
yet, and no other test notices. This module imports neither Triton nor torch by itself.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from pretrain.masking import Masked, MaskedTokens, Rows, TokenFlag, Vocabulary
from pretrain.masking.masked_tokens import Replacement
from pretrain.masking.selection import count, fixed, of_columns, select_tokens, select_units, wide
from pretrain.masking.units import NGrams, Spans, TokenUnits, WholeWords

PAD, UNK, CLS, SEP, MASK, ADDED = 0, 1, 2, 3, 4, 30
VOCABULARY = Vocabulary(50, PAD, CLS, SEP, MASK, frozenset({PAD, UNK, CLS, SEP, MASK, ADDED}))
STRATEGIES = {
    "token": [(TokenUnits(), 1.0)],
    "whole_word": [(WholeWords(), 1.0)],
    "span": [(Spans(0.2, 10), 1.0)],
    "ngram": [(NGrams(3), 1.0)],
    "mix": [(TokenUnits(), 1.0), (WholeWords(), 1.0), (Spans(0.2, 10), 2.0)],
}
ROW_KINDS = 6


def objective(strategy: str, rate: float, seed: int = 0, mask: float = 0.5, random: float = 0.3, per="unit"):
    """Masking, by default with every fate often."""
    return MaskedTokens(VOCABULARY, STRATEGIES[strategy], rate, Replacement(mask, random, per), seed, "train")


def rows_of_all_kinds(n_rows: int, seq_len: int, seed: int) -> Rows:
    """Documents with specials inside, one document, long words, short rows, one ordinary token, padding alone."""
    rng = np.random.default_rng(seed)
    tokens = rng.choice(VOCABULARY.ordinary_ids, size=(n_rows, seq_len))
    starts = rng.random((n_rows, seq_len)) < 0.6
    for row, kind in enumerate((np.arange(n_rows) + seed) % ROW_KINDS):
        if kind == 0:
            special = rng.random(seq_len) < 0.15
            tokens[row, special] = rng.choice([UNK, ADDED, SEP, MASK], size=special.sum())
        elif kind == 2:
            starts[row] = rng.random(seq_len) < 0.04
        elif kind == 3:
            tokens[row, rng.integers(3, seq_len) :] = PAD
        elif kind == 4:
            tokens[row, np.arange(seq_len) != rng.integers(1, seq_len - 1)] = UNK
        elif kind == 5:
            tokens[row] = PAD
        if kind != 5:
            tokens[row, 0] = CLS
            tokens[row, -1] = PAD if kind == 3 else SEP
    places = rng.integers(0, 2**32, size=(n_rows, 3))
    return Rows(tokens, places, starts * np.uint8(TokenFlag.WORD_START))


def rows_with_ties(masking: MaskedTokens, rate: float, seq_len: int) -> Rows:
    """Rows with two units of the same 16-bit draw, so that their order decides the selection.

    Once the first of the two slots comes first, and once the second, because of the draw of the row's first slot.
    """
    n_rows = 4000
    row = rows_of_all_kinds(1, seq_len, seed=1)  # one document
    places = np.zeros((n_rows, 3), dtype=np.int64)
    places[:, 2] = np.arange(n_rows)
    rows = Rows(np.repeat(row.tokens, n_rows, axis=0), places, np.repeat(row.flags, n_rows, axis=0))
    ordinary = VOCABULARY.is_ordinary[rows.tokens]
    units = masking.units(rows, ordinary)
    counts = count(rate, ordinary.sum(axis=1))
    draws = of_columns(masking.key, places, seq_len + 3 * masking.slots(seq_len) + 2)
    selected = []
    for first in (draws[:, 0], 0, 0xFFFF):  # it breaks ties
        order = draws[:, :seq_len].copy()
        order[:, 0] = first
        if units is None:
            selected.append(select_tokens(ordinary, counts, order))
        else:
            selected.append(select_units(ordinary, units.begins, counts, order, wide(draws[:, -2:])[:, 0]))
    right, low, high = selected
    found = [np.flatnonzero((right != other).any(axis=1))[:1] for other in (low, high)]
    chosen = np.concatenate(found)
    assert len(chosen) == 2, f"among {n_rows} rows there are not both kinds of ties"
    return Rows(rows.tokens[chosen], places[chosen], rows.flags[chosen])


def assert_same(found: Masked, wanted: Masked) -> None:
    """The same bits, in arrays of the same shapes and types."""
    for name in ("tokens", "positions", "labels"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert mine.dtype == theirs.dtype == np.int64
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@contextmanager
def triton_process(interpret: bool) -> Iterator[ProcessPoolExecutor]:
    """A process that runs functions with Triton, interpreted or not."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_start, initargs=(interpret,)) as pool:
        yield pool


def _start(interpret: bool) -> None:
    assert "triton" not in sys.modules
    os.environ["TRITON_INTERPRET"] = str(int(interpret))
    if version("triton").startswith("3.6."):
        _make_indices_of_arrays()


def _make_indices_of_arrays() -> None:
    """Let the interpreter of Triton 3.6 run with numpy 2.4.

    This Triton calls int() on an array with the shape (1,) if a kernel uses a scalar as an index, such as in `range`.
    numpy 2.4 refuses that; Triton 3.7 squeezes the array first. Kernels on a GPU do not use this code.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def philox_on_cpu(key: tuple[int, int], c0: list[int], c1: int, c2: int, c3: int) -> list[list[int]]:
    """See tests.support.triton_kernels.philox_words."""
    from tests.support.triton_kernels import philox_words

    return philox_words(key, c0, c1, c2, c3)


def compiled_for(backend: str, architecture: int | str, lanes: int):
    """See tests.support.compiled_kernels: what was compiled, and all functions of Triton in the source."""
    from tests.support.compiled_kernels import compiled_kernels, kernels_in_source

    return compiled_kernels(backend, architecture, lanes), *kernels_in_source()


def graph_compared(arch: str, checkpointing: bool):
    """See tests.support.kernel_graphs.compare."""
    from tests.support.kernel_graphs import compare

    return compare(arch, checkpointing)


def device_inputs(masking: MaskedTokens, rows: Rows, rate: float, device: str):
    """The tensors that the kernel takes: tokens, units, places, rate."""
    import torch

    units = masking.units(rows, VOCABULARY.is_ordinary[rows.tokens])
    arrays = (rows.tokens, None if units is None else units.bits, rows.row_ids, np.array([fixed(rate)]))
    return [None if array is None else torch.from_numpy(array).to(device) for array in arrays]


def mask_on(device: str, masking: MaskedTokens, rows: Rows, rate: float) -> Masked:
    """The kernel's masks of rows, in memory that is not zero before."""
    import torch

    from pretrain.masking.gpu_masking import DeviceMasking

    mask = DeviceMasking(masking, torch.device(device))
    out = mask.empty(*rows.tokens.shape)
    for tensor in out:
        tensor.fill_(-7)
    found = mask(*device_inputs(masking, rows, rate, device), out=out)
    assert all(mine is theirs for mine, theirs in zip(found, out, strict=True))
    return Masked(*(tensor.cpu().numpy() for tensor in found))


def refusals(masking: MaskedTokens, rows: Rows) -> list[str]:
    """The kernel's errors for tensors of wrong shapes, one after the other."""
    import torch

    from pretrain.masking.gpu_masking import DeviceMasking

    mask = DeviceMasking(masking, torch.device("cpu"))
    tokens, units, places, rate = device_inputs(masking, rows, 0.15, "cpu")
    long = torch.zeros((1, (1 << 14) + 1), dtype=torch.int64)
    small = mask.empty(len(tokens) - 1, tokens.shape[1])
    wrong = [
        ((tokens.int(), units, places, rate), {}),
        ((tokens.T.contiguous().T, units, places, rate), {}),
        ((tokens, None, places, rate), {}),
        ((tokens, units.bool(), places, rate), {}),
        ((tokens, units, places[1:], rate), {}),
        ((tokens, units, places, rate.double()), {}),
        ((long, long.to(torch.uint8), places[:1], rate), {}),
        ((tokens, units, places, rate), {"out": small}),
    ]
    said = []
    for arguments, options in wrong:
        try:
            mask(*arguments, **options)
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    return said
