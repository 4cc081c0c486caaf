"""Words and their hashes, and repetitive documents: each of Gopher's rules by itself."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.cleaning import repetition
from data_prep.cleaning.repetition import MAX_DUPLICATE_NGRAM_CHARACTERS, MAX_TOP_NGRAM_CHARACTERS, repetitive
from data_prep.cleaning.word_hashes import split_words
from tests.support.small_tokenizers import demo_texts


def fresh(count: int, start: int = 0) -> list[str]:
    """Different words of five characters."""
    return [f"w{index:04d}" for index in range(start, start + count)]


def duplicate_lines() -> str:
    lines = [" ".join(fresh(20, 20 * line)) for line in range(6)]
    return "\n".join(part for line in lines for part in (line, "x"))


def duplicate_line_characters() -> str:
    lines = [" ".join(fresh(10, 10 * line)) for line in range(8)]
    return "\n".join(["-" * 300, *lines, "-" * 300])


def duplicate_paragraphs() -> str:
    paragraphs = ["\n".join(fresh(10, 10 * paragraph)) for paragraph in range(4)]
    return "\n\n".join(part for paragraph in paragraphs for part in (paragraph, "x"))


def duplicate_paragraph_characters() -> str:
    symbols = "\n".join("!#$%&'()*+,-./:;<=>?@[]^_{|}~§"[:30])
    pairs = [f"{a}{b}" for a in "abcdefghij" for b in "vwxyz"][:46]
    return "\n\n".join([symbols, "\n".join(pairs[:23]), symbols, "\n".join(pairs[23:])])


def top_ngram(n: int) -> str:
    """The same n words again and again, with different ones between: a share 0.01 above the bound."""
    share = MAX_TOP_NGRAM_CHARACTERS[n] + 0.01
    between = int(n / share) - n
    blocks = [[f"rep{k:02d}" for k in range(n)] + fresh(between, between * k) for k in range(20)]
    return " ".join(word for block in blocks for word in block)


def duplicate_ngram(n: int) -> str:
    """Twenty runs of n words that occur twice each, all in different surroundings: 0.005 above the bound."""
    share = MAX_DUPLICATE_NGRAM_CHARACTERS[n] + 0.005
    runs = [fresh(n, n * run) for run in range(20)]
    total = round(20 * n / share)
    others = iter(fresh(total - 40 * n, 5000))
    words = [word for run in runs + runs for word in [*run, next(others)]]
    return " ".join([*words, *others])


CASES = {
    "MAX_DUPLICATE_LINES": duplicate_lines,
    "MAX_DUPLICATE_LINE_CHARACTERS": duplicate_line_characters,
    "MAX_DUPLICATE_PARAGRAPHS": duplicate_paragraphs,
    "MAX_DUPLICATE_PARAGRAPH_CHARACTERS": duplicate_paragraph_characters,
}


@pytest.mark.parametrize("rule", CASES)
def test_line_and_paragraph_rules(rule, monkeypatch):
    text = CASES[rule]()
    assert repetitive([text]).tolist() == [True]
    monkeypatch.setattr(repetition, rule, 1.0)
    assert repetitive([text]).tolist() == [False], "another rule found it"


@pytest.mark.parametrize("n", range(2, 11))
def test_ngram_rules(n, monkeypatch):
    make, bounds = (top_ngram, MAX_TOP_NGRAM_CHARACTERS) if n < 5 else (duplicate_ngram, MAX_DUPLICATE_NGRAM_CHARACTERS)
    text = make(n)
    assert repetitive(["other words", text, text]).tolist() == [False, True, True]
    monkeypatch.setitem(bounds, n, 1.0)
    assert repetitive([text]).tolist() == [False], "another rule found it"


def test_published_bounds():
    rules = [getattr(repetition, name) for name in CASES]
    assert rules == [0.30, 0.20, 0.30, 0.20]
    assert MAX_TOP_NGRAM_CHARACTERS == {2: 0.20, 3: 0.18, 4: 0.16}
    assert MAX_DUPLICATE_NGRAM_CHARACTERS == {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def test_line_shares():
    shares = repetition.duplicate_line_shares
    assert shares("a\nb\n\n \nc") == shares("") == (0.0, 0.0)
    assert shares("aaa\nb\n aaa\n\naaa ") == pytest.approx((2 / 4, 6 / 10))
    assert shares("a\nb\n\na\n\na\nb", "\n\n") == pytest.approx((1 / 3, 3 / 7))


def slow_top_share(words: list[str], n: int) -> float:
    counts = Counter(tuple(words[k : k + n]) for k in range(len(words) - n + 1))
    most = max(counts.values(), default=0)
    longest = max((len("".join(gram)) for gram, count in counts.items() if count == most), default=0)
    return most * longest / len("".join(words)) if most > 1 else 0.0


def slow_duplicate_share(words: list[str], n: int) -> float:
    seen, covered = set(), set()
    for k in range(len(words) - n + 1):
        gram = tuple(words[k : k + n])
        if gram in seen:
            covered |= set(range(k, k + n))
        seen.add(gram)
    return sum(len(words[k]) for k in covered) / max(1, len("".join(words)))


@given(st.lists(st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=30), max_size=5), st.integers(2, 6))
@settings(deadline=None)
def test_ngram_shares_against_plain_python(texts, n):
    words = split_words([" ".join(text) for text in texts])
    tops, repeats = repetition.top_ngram_shares(words, n), repetition.duplicate_ngram_shares(words, n)
    assert tops.tolist() == pytest.approx([slow_top_share(text, n) for text in texts])
    assert repeats.tolist() == pytest.approx([slow_duplicate_share(text, n) for text in texts])


def test_ordinary_prose_is_kept():
    texts = demo_texts()
    repeats = repetitive(texts)
    assert len(texts) > 100
    assert repeats.mean() < 0.02
    assert repetitive([text.split("\n")[0] * 5 for text in texts[:20]]).all()
    assert repeats.tolist() == [bool(repetitive([text])[0]) for text in texts], "neighbours change the answer"


def test_of_a_very_long_document_the_beginning_is_judged():
    distinct = " ".join(fresh(10_000)) + " "
    assert not repetitive([" ".join(f"v{k:06d}" for k in range(270_000)) + distinct * 20])[0]
    assert repetitive([distinct * 20])[0]


MASK = 2**64 - 1


def mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hash_of(word: str) -> int:
    """The documented formula, in Python's integers."""
    return mixed(sum(mixed(ord(c)) * pow(0x9E3779B97F4A7C15, k, 1 << 64) for k, c in enumerate(word)) & MASK)


@pytest.mark.parametrize("text,words", [
    ("", []),
    (" \t\n.,;--\u2014\u00a0\ufeff", []),
    ("Don't stop_here, now", ["don", "t", "stop", "here", "now"]),
    ("“quoted”…and—dashed", ["quoted", "and", "dashed"]),
    ("x86 3rd ½", ["x86", "3rd", "½"]),
    ("ΣΊΣΥΦΟΣ Жук ÀÉ", ["σίσυφοσ", "жук", "àé"]),
    ("हिन्दी शब्द।", ["हिन्दी", "शब्द"]),
    ("مرحبا، عالم", ["مرحبا", "عالم"]),
    ("東京、日本abc", ["東", "京", "日", "本", "abc"]),
    ("ひらカタ", ["ひ", "ら", "カ", "タ"]),
    ("ก ข", ["ก", "ข"]),
    ("\U0001f600smile\U0001f680", ["smile"]),
    ("\U00020000\U00020001", ["\U00020000", "\U00020001"]),
    ("broken\ud800half", ["broken", "half"]),
])  # fmt: skip
def test_words_are_hashed_by_the_formula(text, words):
    hashes, characters, per_text = split_words([text])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [hash_of(word) for word in words]
    assert characters.tolist() == list(map(len, words))
    assert per_text.tolist() == [len(words)]
    assert hash_of("the") == 0x788DD811FF091D92  # the same on every machine


@pytest.mark.parametrize("separator", [" ", "\n", "—"])
def test_long_texts(separator):
    many = [f"w{index * 7919 % 1000}" for index in range(120_000)]
    hashes, _, per_text = split_words(["before", separator.join(many), "after"])
    by_word = {word: hash_of(word) for word in set(many)}
    expected = [hash_of("before"), *(by_word[word] for word in many), hash_of("after")]
    if separator == "—":  # cut after 131,072 characters without a space, at most once each
        assert abs(len(hashes) - len(expected)) <= 5
    else:
        assert hashes.tolist() == expected
        assert per_text.tolist() == [1, len(many), 1]
    again = split_words(["x" * 100_000, separator.join(many)])
    assert (again.hashes[1:] == hashes[1:-1]).all()  # the cuts depend on the text alone
