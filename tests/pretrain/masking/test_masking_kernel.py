"""The masking kernel in Triton's interpreter, on a CPU: the bits of the oracle.

tests/gpu/test_masking_kernel.py compares the same on a GPU.
"""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.masking import IGNORED
from pretrain.philox import philox
from tests.support.device_masks import (
    MASK,
    ROW_KINDS,
    STRATEGIES,
    assert_same,
    mask_on,
    objective,
    philox_on_cpu,
    refusals,
    rows_of_all_kinds,
    rows_with_ties,
    triton_process,
)
from tests.support.philox_vectors import VECTORS

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which there is for Linux alone")


@pytest.fixture(scope="module")
def interpreter():
    with triton_process(interpret=True) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


@pytest.mark.parametrize(("counter", "key", "output"), VECTORS)
def test_published_vectors_of_philox(interpreter, counter, key, output):
    assert interpreter(philox_on_cpu, key, [counter[0]], *counter[1:]) == [list(output)]


def test_philox_of_many_counters(interpreter):
    key, c0, rest = (
        (0x9ABCDEF0, 0xFEDCBA98),
        [*range(60), 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1],
        (1, 2**31, 2**32 - 1),
    )
    assert interpreter(philox_on_cpu, key, c0, *rest) == np.stack(philox(key, np.array(c0), *rest), axis=1).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=6, deadline=None)
@given(
    n_rows=st.integers(1, 3),
    seq_len=st.integers(10, 70),
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([0.01, 0.15, 0.3, 0.9]),
    share_now=st.sampled_from([1.0, 0.5]),
    per=st.sampled_from(["unit", "word", "token"]),
    replacement=st.sampled_from([(0.8, 0.1), (0.3, 0.7), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)]),
)
def test_bits_of_the_oracle(interpreter, strategy, n_rows, seq_len, seed, rate, share_now, per, replacement):
    masking = objective(strategy, rate, seed, *replacement, per)
    rows = rows_of_all_kinds(n_rows, seq_len, seed)
    assert_same(interpreter(mask_on, "cpu", masking, rows, rate * share_now), masking(rows, rate * share_now))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("seq_len", "rate", "per"), [(77, 0.15, "word"), (45, 0.9, "token")])
def test_every_kind_of_row(interpreter, strategy, seq_len, rate, per):
    masking = objective(strategy, rate, seed=3, per=per)
    rows = rows_of_all_kinds(ROW_KINDS, seq_len, seed=0)
    assert_same(interpreter(mask_on, "cpu", masking, rows, rate), masking(rows, rate))


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_ties_among_draws(interpreter, strategy):
    masking = objective(strategy, 0.15)
    rows = rows_with_ties(masking, 0.15, seq_len=1024)
    assert_same(interpreter(mask_on, "cpu", masking, rows, 0.15), masking(rows, 0.15))


@pytest.mark.parametrize("strategy", ["token", "span"])
def test_a_rate_above_the_objectives_harms_no_memory(interpreter, strategy):
    """A token without a free place stays unchanged: only predicted tokens are seen as [MASK]."""
    masking = objective(strategy, 0.1, mask=1.0, random=0.0)
    rows = rows_of_all_kinds(ROW_KINDS, 50, seed=0)
    found = interpreter(mask_on, "cpu", masking, rows, 1.0)
    used = found.labels != IGNORED
    assert used.reshape(ROW_KINDS, -1)[:3].all()
    changed = np.flatnonzero(found.tokens != rows.tokens.reshape(-1))
    np.testing.assert_array_equal(changed, found.positions[used])
    assert (found.tokens[changed] == MASK).all()


def test_tensors_that_do_not_fit_are_refused(interpreter):
    said = interpreter(refusals, objective("span", 0.15), rows_of_all_kinds(4, 32, seed=0))
    subjects = ("tokens", "tokens", "units", "units", "row_ids", "rate", "rows", "out.tokens")
    assert tuple(sentence.split()[0] for sentence in said) == subjects, said
