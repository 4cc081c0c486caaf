"""Statistics of masks on large samples: rates, mixes, and independence.

Seeds are fixed, so results repeat; what fails was as likely as 1e-6 if the code were right (tests/support/chance.py).
Trials are rows, which are independent, or what is drawn independently within them.
"""

import numpy as np
import pytest

from pretrain.masking import Masked
from pretrain.masking.selection import count
from tests.support.chance import check_means, check_shares
from tests.support.drawn_rows import STRATEGIES, VOCABULARY, drawn, elsewhere, masking, selected, some, words
from tests.support.masks import token_masking

LAYOUTS = {
    "unequal": f"[{words(8, 1, 1, 8, 2, 1, 5, 1, 1, 1)}]",
    "documents": f"[{words(1, 8)}][{words(8)}][{words(1)}][{words(2, 1)}]...",
    "specials": f"[{words(3, 1, 6)}?aaa{words(1, 1)}#{words(4)}!aa*]",
    "short": f"[{words(8, 2)}]",
    "cut": f"[{words(20, 1, 3)}]",
}
KEPT, MASK, RANDOM = 0, 1, 2


def fates_of(found: Masked, before: np.ndarray) -> np.ndarray:
    """Of each slot [R, S] what is seen in it: KEPT, MASK or RANDOM."""
    seen = found.tokens.reshape(before.shape)
    return np.select([seen == before, seen == VOCABULARY.mask], [KEPT, MASK], RANDOM)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_token_has_the_chance_k_of_n(strategy, layout):
    """For any length of its unit, at the ends of documents, next to specials, and if k is less than a unit."""
    rows = drawn(LAYOUTS[layout], 8000)
    ordinary = VOCABULARY.is_ordinary[rows.tokens[0]]
    n = int(ordinary.sum())
    for rate in (0.1, 0.4, 0.85):
        hit = selected(masking(strategy, rate)(rows, rate), len(rows.tokens))
        k = int(count(rate, n))
        check_shares(hit.sum(axis=0)[ordinary], len(hit), k / n)
        if strategy == "token":
            assert (hit.sum(axis=1) == k).all()
        else:
            check_means(hit.sum(axis=1), k)


@pytest.mark.parametrize("weights", [(1, 1, 2), (0.5, 0.001, 0.2)])
def test_rows_of_a_mix_are_shared_by_weight(weights):
    """The units of a row show its strategy. The draws of two rows are independent."""
    rows = drawn(f"[{words(*[2] * 15)}]", 40_000)
    strategy = dict(zip(("token", "whole_word", "span"), weights, strict=True))
    mask = token_masking(VOCABULARY, strategy=strategy)
    begins = mask.unit_begins(rows, VOCABULARY.is_ordinary[rows.tokens])[:, 1:-1]
    in_words, at_words = begins[:, 1::2], begins[:, ::2]
    chosen = np.where(in_words.all(axis=1), 0, np.where(at_words.all(axis=1), 1, 2))  # 15 spans of one word: 1e-10
    counts, shares = np.bincount(chosen, minlength=3), np.array(weights) / sum(weights)
    check_shares(counts, 40_000, shares)
    check_shares(((chosen[::2] == 0) & (chosen[1::2] == 0)).sum(), 20_000, shares[0] ** 2)


SAME = drawn(f"[{words(3, 1, 2, 1, 4, 1, 1, 2, 1, 3)}][{words(1, 1, 2, 1, 5, 1)}]", 3000, id=10)
OTHERS = {
    "epoch": lambda mask, options: (mask, elsewhere(SAME, epoch=1)),
    "source": lambda mask, options: (mask, elsewhere(SAME, epoch=1 << 16)),
    "window": lambda mask, options: (mask, elsewhere(SAME, window=1)),
    "row": lambda mask, options: (mask, elsewhere(SAME, row=3000)),
    "next row": lambda mask, options: (mask, elsewhere(SAME, row=1)),
    "seed": lambda mask, options: (masking(**options | {"seed": 1}), SAME),
    "purpose": lambda mask, options: (masking(**options | {"purpose": "valid"}), SAME),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_masks_of_a_row_are_independent(strategy, other):
    """In other epochs, sources, windows and rows, under other seeds and purposes: selection and fates."""
    options = {"strategy": strategy, "rate": 0.3, "mask": 0.5, "random": 0.3}
    mask = masking(**options)
    pair = [(mask, SAME), OTHERS[other](mask, options)]
    apart = slice(None, None, 2) if other == "next row" else slice(None)  # or rows would be in two pairs
    pair = [(mask, some(rows, apart)) for mask, rows in pair]
    masked = [mask(rows, 0.3) for mask, rows in pair]
    n_rows, n, k = len(pair[0][1].tokens), 30, int(count(0.3, 30))
    assert VOCABULARY.is_ordinary[SAME.tokens[0]].sum() == n
    both = selected(masked[0], n_rows) & selected(masked[1], n_rows)
    check_means(both.sum(axis=1), k * k / n)
    slot = np.argmax(both * np.random.default_rng(1).random(both.shape), axis=1)  # rows are independent
    of_rows = [fates_of(found, rows.tokens) for found, (_, rows) in zip(masked, pair, strict=True)]
    fates = [found[np.arange(n_rows), slot][both.any(axis=1)] for found in of_rows]
    check_shares((fates[0] == fates[1]).sum(), len(fates[0]), 0.5**2 + 0.3**2 + 0.2**2)
