"""Collocations: counted and rated as in the paper, found in rows as in a plain search, and masked as a whole."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from data_prep.common.errors import UserError
from data_prep.format import Collocations, Dataset
from data_prep.inspection import CollocationCounts, collocation_search, find_collocations
from launchers.app import app
from pretrain.checkpoint import Identity
from pretrain.config import Config
from pretrain.data import Sources
from pretrain.masking import IGNORED, Vocabulary, cached_collocations
from pretrain.masking.collocation_units import CollocationUnits, collocations_of
from pretrain.masking.units import RowText
from pretrain.objectives import objective_of
from pretrain.reporting import replay
from tests.support.datasets import make_dataset
from tests.support.masks import rows_of
from tests.support.run_folder import make_run
from tests.support.wordpiece_set import SHIP, wordpiece_set

Word = tuple[int, ...]
Ngram = tuple[Word, ...]
UNK = 1
EVERYTHING = 10**9


def runs_of(documents: list[list[int]], starts: list[np.ndarray]) -> list[list[Word]]:
    """The words of each run of ordinary tokens, one token after the other."""
    runs: list[list[Word]] = []
    for document, begins in zip(documents, starts, strict=True):
        fresh = True
        for id, start in zip(document, begins, strict=True):
            if id < 5:
                fresh = True
            elif fresh:
                runs.append([(id,)])
                fresh = False
            elif start:
                runs[-1].append((id,))
            else:
                runs[-1][-1] += (id,)
    return runs


def rated(runs: list[list[Word]], min_count: int, max_words: int) -> dict[Ngram, tuple[int, float]]:
    """Count and PMI of each frequent n-gram, from all its segmentations."""
    counts: Counter[Ngram] = Counter()
    for run in runs:
        for n in range(1, max_words + 1):
            counts.update(tuple(run[at : at + n]) for at in range(len(run) - n + 1))
    totals: Counter[int] = Counter()
    for ngram, count in counts.items():
        totals[len(ngram)] += count

    def log_p(ngram: Ngram) -> float:
        return math.log(counts[ngram] / totals[len(ngram)])

    found = {}
    for ngram, count in counts.items():
        n = len(ngram)
        if n > 1 and count >= min_count:
            cuts = [(0, *cut, n) for parts in range(1, n) for cut in combinations(range(1, n), parts)]
            sums = [sum(log_p(ngram[a:b]) for a, b in pairwise(cut)) for cut in cuts]
            found[ngram] = count, min(log_p(ngram) - one for one in sums)
    return found


def ngrams_of(found: Collocations) -> list[Ngram]:
    tokens, sizes = iter(found.tokens.tolist()), iter(found.word_sizes.tolist())
    return [tuple(tuple(next(tokens) for _ in range(next(sizes))) for _ in range(n)) for n in found.n_words]


def made(ngrams: list[Ngram], tokenizer: str = "") -> Collocations:
    words = [word for ngram in ngrams for word in ngram]
    return Collocations(
        np.array([id for word in words for id in word], dtype=np.int64),
        np.array([len(word) for word in words]),
        np.array([len(ngram) for ngram in ngrams]),
        tokenizer,
    )


def find(dataset: Dataset, size=EVERYTHING, min_count=2, max_words=5, tokens=10**6) -> CollocationCounts:
    return find_collocations(dataset, size, min_count, max_words, tokens, lambda *_: None)


@pytest.fixture
def text(tmp_path) -> tuple[Dataset, list[list[Word]]]:
    """Documents of six ids, unknown tokens among them, with words of one to several tokens; and their runs."""
    rng = np.random.default_rng(3)
    documents = [rng.choice([UNK, *range(5, 11)], size=rng.integers(1, 40)).tolist() for _ in range(120)]
    starts = [rng.random(len(document)) < 0.7 for document in documents]
    for begins in starts:
        begins[0] = True
    dataset = make_dataset(tmp_path / "set", documents, 20, block_tokens=300, word_starts=starts)
    return dataset, runs_of(documents, starts)


@pytest.mark.parametrize(("min_count", "max_words", "together"), [(2, 5, 7), (3, 2, 1 << 22), (4, 3, 100)])
def test_pmi_is_the_least_over_all_segmentations(text, min_count, max_words, together, monkeypatch):
    monkeypatch.setattr(collocation_search, "CHUNK", together)
    dataset, runs = text
    found = find(dataset, min_count=min_count, max_words=max_words)
    wanted = {n: one for n, one in rated(runs, min_count, max_words).items() if round(one[1], 4) > 0}
    assert len(wanted) > 30
    ngrams = ngrams_of(found.listed)
    assert dict(zip(ngrams, found.counts.tolist(), strict=True)) == {n: count for n, (count, _) in wanted.items()}
    np.testing.assert_allclose(found.pmi, [wanted[ngram][1] for ngram in ngrams], atol=1e-4)
    assert found.candidates == [sum(len(ngram) == n for ngram in wanted) for n in range(2, max_words + 1)]
    assert (found.words, found.tokens) == (sum(map(len, runs)), dataset.manifest.totals.tokens)
    assert len({len(word) for ngram in ngrams for word in ngram}) > 1, "the text has no long words"


@pytest.mark.parametrize("shares", [[40], [20, 20], [20, 10, 10], [4, 2, 1, 1]])
def test_a_list_has_the_best_of_each_length(text, shares):
    most = len(shares) + 1
    everything, some = find(text[0], max_words=most), find(text[0], size=sum(shares), max_words=most)
    for n, share in enumerate(shares, 2):
        assert (some.listed.n_words == n).sum() == share
        ranks = [found.pmi[found.listed.n_words == n] for found in (everything, some)]
        assert (np.diff(ranks[0]) <= 0).all()
        np.testing.assert_array_equal(ranks[1], ranks[0][:share])


def covered(runs: list[list[Word]], ngrams: list[Ngram]) -> float:
    """Share of the words in an occurrence of an n-gram, overlapping ones included."""
    known, inside, words = set(ngrams), 0, 0
    for run in runs:
        marks = [False] * len(run)
        for n in range(2, 6):
            for at in range(len(run) - n + 1):
                if tuple(run[at : at + n]) in known:
                    marks[at : at + n] = [True] * n
        inside, words = inside + sum(marks), words + len(marks)
    return inside / words


def test_by_default_half_of_the_words_are_covered(text):
    dataset, runs = text
    found = find(dataset, size=None)
    assert found.covered == pytest.approx(covered(runs, ngrams_of(found.listed)))
    assert found.covered > 0.5
    fewer = find(dataset, size=len(found.listed.n_words) * 9 // 10)
    assert fewer.covered == pytest.approx(covered(runs, ngrams_of(fewer.listed)))
    assert fewer.covered < 0.5


NEW, YORK, CITY, OF, THE = ((6,), (7, 8), (9,), (10,), (11,))


@pytest.fixture
def planted(tmp_path) -> Dataset:
    """Noise with 'of the' by chance alone, as often as 'new york city' is put there."""
    rng = np.random.default_rng(1)
    documents = []
    for _ in range(60):
        words: list[Word] = [
            OF if x < 0.08 else THE if x < 0.16 else (int(rng.integers(12, 60)),) for x in rng.random(200)
        ]
        words[100:100] = [NEW, YORK, CITY]
        documents.append([id for word in words for id in word])
    starts = [np.array(document) != 8 for document in documents]
    return make_dataset(tmp_path / "set", documents, 60, block_tokens=1000, word_starts=starts)


def test_a_planted_collocation_is_found_and_chance_is_not(planted):
    found = find(planted, size=8, min_count=10)
    ngrams = ngrams_of(found.listed)
    assert ngrams[0] in ((NEW, YORK), (YORK, CITY))
    assert (NEW, YORK, CITY) in ngrams
    everything = dict(
        zip(ngrams_of(find(planted, min_count=10).listed), find(planted, min_count=10).counts, strict=True)
    )
    assert (OF, THE) not in ngrams
    # Its pairs explain three words wholly: so a trigram that chance makes longer ranks below it, however frequent.
    assert everything[(NEW, YORK, CITY)] == 60


def test_a_sample_is_spread_evenly(planted):
    blocks = planted.n_blocks
    seen: list[int] = []
    tokens = planted.tokens
    planted.tokens = lambda block: seen.append(block) or tokens(block)  # type: ignore[method-assign, func-returns-value]
    found = find(planted, tokens=planted.manifest.totals.tokens // 4)
    assert len(seen) == found.blocks == -(-blocks // 4)
    assert set(np.diff(seen)) <= {3, 4, 5}
    assert found.tokens == sum(map(planted.n_tokens, seen))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_units_are_those_found_by_hand(data):
    """Greedily from left to right, the longest first, within runs of ordinary tokens."""
    seq_len, n_rows = data.draw(st.integers(8, 24)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    vocabulary = Vocabulary(size=12, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
    tokens = rng.choice([2, 5, 6, 7], size=(n_rows, seq_len), p=[0.1, 0.3, 0.3, 0.3])
    starts = rng.random(tokens.shape) < 0.7
    runs = runs_of(tokens.tolist(), list(starts))
    lengths = rng.integers(2, 6, size=data.draw(st.integers(1, 12)))
    ngrams: list[Ngram] = [tuple((int(rng.integers(5, 8)),) for _ in range(n)) for n in lengths]
    long = [run for run in runs if len(run) > 1]
    for run in long[:: data.draw(st.integers(1, 3))]:
        at = int(rng.integers(len(run) - 1))
        ngrams.append(tuple(run[at : at + int(rng.integers(2, 6))]))
    wanted = [list(by_hand(run, set(ngrams))) for run in runs]
    text = RowText(tokens, np.zeros((n_rows, 3), np.int64), vocabulary.is_ordinary[tokens], starts)
    begins = CollocationUnits(made(ngrams), vocabulary).begins(text, (0, 0))
    found = np.split(begins.reshape(-1)[text.words], np.flatnonzero(text.begins_run.reshape(-1)[text.words])[1:])
    assert [np.flatnonzero(run).tolist() for run in found if len(run)] == wanted
    assert not (begins & ~text.begins_word).any()


def by_hand(run: list[Word], known: set[Ngram]) -> list[int]:
    """The words at which units begin."""
    found, at = [], 0
    while at < len(run):
        found.append(at)
        at += next((n for n in range(5, 1, -1) if at + n <= len(run) and tuple(run[at : at + n]) in known), 1)
    return found


def test_words_of_the_same_tokens_that_are_cut_elsewhere_are_others():
    vocabulary = Vocabulary(size=12, pad=0, cls=2, sep=3, mask=4, special_ids=frozenset(range(5)))
    tokens = np.array([[2, 5, 6, 7, 3], [2, 5, 6, 7, 3]])
    starts = np.array([[0, 1, 0, 1, 0], [0, 1, 1, 0, 0]], dtype=bool)
    text = RowText(tokens, np.zeros((2, 3), np.int64), vocabulary.is_ordinary[tokens], starts)
    begins = CollocationUnits(made([((5, 6), (7,))]), vocabulary).begins(text, (0, 0))
    assert begins.astype(int).tolist() == [[0, 1, 0, 0, 0], [0, 1, 1, 0, 0]]


def run(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def ships(tmp_path) -> Dataset:
    """`the ships sailed` again and again, with a tokenizer."""
    rng = np.random.default_rng(0)
    noise = [rng.choice([5, 6, 8, 10], size=6).tolist() for _ in range(60)]
    return wordpiece_set(tmp_path / "ships", [[[*one, *SHIP, *one] for one in noise]], [])


def test_the_command(ships, tmp_path):
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    code, said = run("prep", "collocations", ships.path, "--out", first, "--max-words", 3, "--size", 8)
    assert code == 0
    assert "2 words: 4 of" in said
    assert '"ships sailed"' in said
    assert f"{first}: 8 collocations" in said
    assert run("prep", "collocations", ships.path, "--out", second, "--max-words", 3, "--size", 8)[0] == 0
    assert first.read_bytes() == second.read_bytes()
    table = pq.read_table(first)
    assert table.column_names == ["words", "count", "pmi", "text"]
    rows = {row["text"]: row for row in table.to_pylist()}
    assert rows["ships sailed"]["words"] == [[6, 7], [8, 9]]
    assert rows["ships sailed"]["count"] == 60
    about = json.loads(table.schema.metadata[b"maskwright"])
    assert about["tokenizer_sha256"] == ships.manifest.tokenizer.sha256
    assert about["data_set_fingerprint"] == ships.manifest.fingerprint
    assert about["sample"] == {"blocks": ships.n_blocks, "tokens": 17 * 60, "words": 15 * 60}
    with pytest.raises(UserError, match="exists"):
        run("prep", "collocations", ships.path, "--out", first)
    with pytest.raises(UserError, match=r"[Nn]o folder"):
        run("prep", "collocations", ships.path, "--out", tmp_path / "no" / "c.parquet")
    with pytest.raises(UserError, match=r"no collocations of 1000 occurrences.*lower --min-count"):
        run("prep", "collocations", ships.path, "--out", tmp_path / "c.parquet", "--min-count", 1000)
    assert not (tmp_path / "c.parquet").exists()


def check(config: Config) -> None:
    Sources.open(config).check(config)


def config_of(data: Path, path: Path, **masking) -> Config:
    values = {
        "run": {"dir": "runs/x"},
        "data": {"train": str(data), "seq_len": 24},
        "masking": {"strategy": "collocation", "collocations": str(path), "rate": 0.4, **masking},
        "train": {"steps": 10},
    }
    return Config.model_validate(values)


def written(path: Path, ngrams: list[Ngram], tokenizer: str) -> Path:
    cached_collocations.cache_clear()
    made(ngrams, tokenizer).write(path, {"count": [7] * len(ngrams)}, {})
    return path


def test_collocations_are_masked_as_a_whole(tmp_path):
    vocabulary = Vocabulary(20, 0, 2, 3, 4, frozenset(range(5)), "t")
    path = written(tmp_path / "list", [((6,), (7, 8), (9,)), ((6,), (7, 8))], "t")
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, 20, size=(400, 24))
    tokens[:, 0], tokens[:, -1] = 2, 3
    tokens[:, 5:9], tokens[:, 12:15] = [6, 7, 8, 9], [6, 7, 8]
    starts = tokens != 8
    masking = objective_of(config_of(tmp_path, path), vocabulary, 1, "train")
    assert masking.slots(24) == round(0.4 * 22) + 10 - 1  # the longest unit: 3 words, of 10 tokens at most
    found = masking(rows_of(tokens, word_starts=starts), 0.4)
    predicted = np.zeros(tokens.size, dtype=bool)
    predicted[found.positions[found.labels != IGNORED]] = True
    predicted = predicted.reshape(tokens.shape)
    for unit in (slice(5, 9), slice(12, 15)):
        chosen = predicted[:, unit]
        assert (chosen.all(axis=1) == chosen.any(axis=1)).all()
        assert 0.3 < chosen[:, 0].mean() < 0.5
    assert (predicted[:, 9] != predicted[:, 8]).any()
    assert (predicted[:, 4] != predicted[:, 5]).any()
    fates = (found.tokens.reshape(tokens.shape)[:, 5:9] == 4)[predicted[:, 5]]
    assert (fates.all(axis=1) == fates.any(axis=1)).all(), "parts of a collocation are replaced by themselves"


def test_a_mix_with_collocations(tmp_path):
    vocabulary = Vocabulary(20, 0, 2, 3, 4, frozenset(range(5)), "t")
    path = written(tmp_path / "list", [((6,), (7,))], "t")
    tokens = np.tile(np.array([2, *[6, 7, 10] * 7, 11, 3]), (300, 1))
    masking = objective_of(config_of(tmp_path, path, strategy={"token": 1, "collocation": 1}), vocabulary, 1, "train")
    found = masking(rows_of(tokens), 0.4)
    predicted = np.zeros(tokens.size, dtype=bool)
    predicted[found.positions[found.labels != IGNORED]] = True
    pairs = predicted.reshape(tokens.shape)[:, 1:22].reshape(300, 7, 3)
    whole = (pairs[..., 0] == pairs[..., 1]).all(axis=1)
    assert 0.35 < whole.mean() < 0.65


def test_another_tokenizer_and_bad_files_are_refused(tmp_path):
    vocabulary = Vocabulary(20, 0, 2, 3, 4, frozenset(range(5)), "t")
    path = written(tmp_path / "list", [((6,), (7,))], "t")
    collocations_of(path, vocabulary)
    with pytest.raises(UserError, match=r"another tokenizer than the data set.*maskwright prep collocations"):
        collocations_of(path, replace(vocabulary, tokenizer_sha256="u"))
    with pytest.raises(UserError, match="no such collocation list; make one with `maskwright prep collocations`"):
        collocations_of(tmp_path / "none", vocabulary)
    sound = path.read_bytes()
    words = pq.ParquetFile(path).metadata.row_group(0).column(0)
    last = words.dictionary_page_offset + words.total_compressed_size - 1
    flipped = sound[:last] + bytes([sound[last] ^ 1]) + sound[last + 1 :]
    for number, bad in enumerate([b"", b"hello", sound[:-20], flipped]):
        (tmp_path / f"bad{number}").write_bytes(bad)
        with pytest.raises(UserError, match="is not a sound collocation list"):
            collocations_of(tmp_path / f"bad{number}", vocabulary)
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), tmp_path / "other")
    with pytest.raises(UserError, match="is not a sound collocation list"):
        collocations_of(tmp_path / "other", vocabulary)
    with pytest.raises(UserError, match="its n-grams are not of 2 to 8 words"):
        collocations_of(written(tmp_path / "word", [((6,),)], "t"), vocabulary)


def test_a_list_is_read_as_it_was_written(tmp_path):
    ngrams: list[Ngram] = [((6,), (7, 8), (9,)), ((6,), (7, 8))]
    found = Collocations.read(written(tmp_path / "list", ngrams, "t"))
    assert ngrams_of(found) == ngrams
    assert found.digest == made(ngrams, "t").digest
    assert len({found.digest, made(ngrams[:1], "t").digest, made([((6, 7), (8,), (9,)), ngrams[1]], "t").digest}) == 3


def test_what_a_list_says_decides_and_not_where_it_lies(text, tmp_path):
    data = text[0].path
    sha256 = text[0].manifest.tokenizer.sha256
    ngrams: list[Ngram] = [((6,), (7,))]
    one, same, other = (
        config_of(data, written(tmp_path / name, which, sha256))
        for name, which in (("one", ngrams), ("same", ngrams), ("other", [((6,), (8,))]))
    )
    sources = Sources.open(one)
    identities = [Identity.of(config, sources) for config in (one, same, other)]
    assert identities[0] == identities[1]
    digests = [identity.batch_digest() for identity in identities]
    assert digests[0] == digests[1] != digests[2]
    assert list(identities[0].changes(identities[2])) == ["masking.collocations (content)"]
    (tmp_path / "one").unlink()
    cached_collocations.cache_clear()
    with pytest.raises(UserError, match="no such collocation list"):
        Identity.of(one, sources)


def test_a_run_needs_its_list_to_be_replayed(tmp_path):
    data = tmp_path / "data"
    rng = np.random.default_rng(0)
    documents = [rng.integers(5, 9, size=40).tolist() for _ in range(60)]
    starts = [np.ones(40, dtype=bool)] * 60
    sha256 = make_dataset(data / "train", documents, word_starts=starts).manifest.tokenizer.sha256
    path = written(tmp_path / "list", [((6,), (7,)), ((5,), (6,), (7,))], sha256)
    masking = {"masking__strategy": "collocation", "masking__collocations": str(path)}
    make_run(data, tmp_path / "run", data__valid=None, **masking)
    replay(tmp_path / "run", 3)  # raises unless the batch has the checksum in the journal
    check(config_of(data / "train", path))
    written(path, [((6,), (7,))], sha256)
    with pytest.raises(UserError, match=r"cannot be replayed: masking.collocations \(content\) was \w+ and is \w+"):
        replay(tmp_path / "run", 3)
    path.unlink()
    cached_collocations.cache_clear()
    with pytest.raises(UserError, match="no such collocation list"):
        replay(tmp_path / "run", 3)
    with pytest.raises(UserError, match="no such collocation list"):
        check(config_of(data / "train", path))
