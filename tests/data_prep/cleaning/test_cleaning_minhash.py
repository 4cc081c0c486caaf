"""MinHash: estimates against the exact Jaccard similarity, and the chance that two documents share a band."""

import random

import numpy as np
import pytest

from data_prep.cleaning.near_duplicates import VALUES, bands_and_rows, signatures, sketches
from data_prep.jobs import PreparationSettings


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[k : k + 5]) for k in range(len(words) - 4)}


def jaccard(one: list[str], other: list[str]) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b)


def altered(words: list[str], changes: int, rng: random.Random) -> list[str]:
    """`changes` words replaced, far from each other: each takes five shingles away and brings five."""
    places = [place * len(words) // max(1, changes) for place in range(changes)]
    return [f"new{rng.randrange(10**9)}" if place in places else word for place, word in enumerate(words)]


def pairs(similarity: float, count: int, length: int) -> tuple[list[list[str]], list[list[str]]]:
    """Random documents and copies of them that are about this similar: s = (1 - c) / (1 + c) for a changed share c."""
    rng = random.Random(similarity)
    changed = round(length * (1 - similarity) / (1 + similarity) / 5)
    ones = [[f"w{rng.randrange(10**6)}" for _ in range(length)] for _ in range(count)]
    return ones, [altered(words, changed, rng) for words in ones]


def texts(documents: list[list[str]]) -> list[str]:
    return [" ".join(words) for words in documents]


def shared(ones: list[list[str]], others: list[list[str]]) -> float:
    """The share of pairs that have a band in common."""
    return float((signatures(texts(ones), 0.7) == signatures(texts(others), 0.7)).any(axis=1).mean())


def test_bands_and_rows():
    assert bands_and_rows(0.8) == (11, 11)
    assert bands_and_rows(PreparationSettings.near_threshold) == (16, 8)
    for threshold in (0.3, 0.5, 0.7, 0.9, 0.95):
        bands, rows = bands_and_rows(threshold)
        assert bands * rows <= VALUES
        assert (1 / bands) ** (1 / rows) == pytest.approx(threshold, abs=0.03)


@pytest.mark.parametrize("length", [60, 400, 1500])
@pytest.mark.parametrize("similarity", [0.2, 0.5, 0.9])
def test_estimates(similarity, length):
    ones, others = pairs(similarity, 40, length)
    exact = np.array([jaccard(one, other) for one, other in zip(ones, others, strict=True)])
    assert exact.mean() == pytest.approx(similarity, abs=0.1)
    estimates = (sketches(texts(ones)) == sketches(texts(others))).mean(axis=1)
    error = estimates - exact
    deviation = np.sqrt(similarity * (1 - similarity) / VALUES)
    assert abs(error.mean()) < 4 * deviation / np.sqrt(len(ones)) * (2 if length < VALUES else 1)
    assert error.std() < deviation * (2.5 if length < VALUES else 1.4)  # below 128 shingles, values are copies


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9])
def test_detection_follows_the_theory(similarity):
    """The chance that two documents of Jaccard similarity s share a band is 1 - (1 - s^rows)^bands."""
    ones, others = pairs(similarity, 300, 600)
    exact = [jaccard(one, other) for one, other in zip(ones[:30], others, strict=False)]  # they differ little
    theory = float(np.mean([1 - (1 - each**8) ** 16 for each in exact]))
    share = shared(ones, others)
    assert share == pytest.approx(theory, abs=4 * np.sqrt(theory * (1 - theory) / 300) + 0.01)
    assert share > 0.99 or similarity < 0.9
    assert share < 0.15 or similarity > 0.5


def mutated(sequence: str, identity: float, letters: str, rng: random.Random) -> str:
    """A copy with this share of equal residues; the others are spread at random."""
    places = set(rng.sample(range(len(sequence)), round(len(sequence) * (1 - identity))))
    changed = {place: rng.choice(letters.replace(sequence[place], "")) for place in places}
    return "".join(changed.get(place, letter) for place, letter in enumerate(sequence))


@pytest.mark.parametrize("letters,length", [("ACDEFGHIKLMNPQRSTVWY", 300), ("ACGT", 3000)])
@pytest.mark.parametrize("identity,threshold,least", [(0.99, 0.5, 0.99), (0.97, 0.4, 0.95), (0.95, 0.2, 0.95)])
def test_similar_sequences_are_found_by_their_characters(letters, length, identity, threshold, least):
    rng = random.Random(identity)
    ones = ["".join(rng.choices(letters, k=length)) for _ in range(200)]
    others = [mutated(one, identity, letters, rng) for one in ones]
    keys = [signatures(some, threshold, "characters") for some in (ones, others)]
    assert (keys[0] == keys[1]).any(axis=1).mean() >= least
    assert (keys[0] == np.roll(keys[1], 1, axis=0)).any(axis=1).mean() < 0.02, "of sequences without a relation"
    assert not signatures(ones, threshold).any(), "one word has no 5-gram"


def test_short_documents():
    same = "Of four words only"
    hashes = signatures([same, same, "", "five words make one shingle", "Five words: make one shingle!"], 0.7)
    assert hashes.shape == (5, 16)
    assert not hashes[:3].any()
    assert hashes[3].all()
    assert len(set(hashes[3].tolist())) == 16, "bands differ"
    assert (hashes[3] == hashes[4]).all()
    assert signatures([], 0.7).shape == (0, 16)
    ones, others = pairs(0.0, 200, 6)
    assert shared(ones, others) == 0
    assert shared(ones, ones) == 1


def test_signatures_depend_on_the_text_alone(monkeypatch):
    ones, _ = pairs(0.5, 30, 80)
    whole = signatures(texts(ones), 0.7)
    assert whole.dtype == np.uint64
    assert (np.concatenate([signatures([text], 0.7) for text in texts(ones)]) == whole).all()
    monkeypatch.setattr("data_prep.cleaning.word_hashes.BATCH_TEXTS", 7)
    monkeypatch.setattr("data_prep.cleaning.word_hashes.PART_WORDS", 11)
    assert (signatures(texts(ones), 0.7) == whole).all()
    assert (np.concatenate([signatures([text], 0.7) for text in texts(ones)]) == whole).all()
    # the same in every process and on every machine
    golden = [2332135150721178723, 13880405481564707469]
    assert signatures(["the quick brown fox jumps over the lazy dog"], 0.8)[0, :2].tolist() == golden
