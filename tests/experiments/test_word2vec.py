"""Word vectors: words of tokens, similarity by scipy, and the classifier of their mean."""

import numpy as np
import pytest
import scipy.stats
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data_prep.common.errors import UserError
from experiments import word2vec
from experiments.mean_of_embeddings import save_word_vectors
from experiments.word2vec import bootstrap_p, embeddings_of, joined, read_similarities, spearman

WORDS = ["sun", "moon", "star"]
VECTORS = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, -2.0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors") / "model"
    like = Tokenizer(models.WordPiece({"[UNK]": 0, "s": 1, "##un": 2}, unk_token="[UNK]"))
    like.normalizer, like.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    save_word_vectors(folder, WORDS, VECTORS, like)
    return folder


def test_tokens_are_joined_to_whole_words():
    tokens = ["##ing", "the", "ship", "##s", "##mate", "."]
    assert joined(tokens, [False, True, True, False, False, True]) == ["ing", "the", "shipsmate", "."]
    assert joined([], []) == []


def test_pairs_count_if_both_words_are_known(tmp_path):
    file = tmp_path / "WS-353-ALL.txt"
    file.write_text("Sun moon 4.5\nsun cat 2\nmoon star 1\n")
    found = read_similarities(file)
    assert found.name == "WS-353"
    kept = found.among({"sun": 9, "moon": 9, "star": 9})
    assert (kept.first, kept.second, kept.human.tolist()) == (("sun", "moon"), ("moon", "star"), [4.5, 1.0])
    file.write_text("sun moon\n")
    with pytest.raises(UserError, match="two words and a score"):
        read_similarities(file)


def test_the_correlation_is_spearmans_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.integers(0, 6, (2, 30)).astype(float)
        assert spearman(one, other) == pytest.approx(scipy.stats.spearmanr(one, other).statistic)
    assert spearman(np.arange(9.0), np.arange(9.0) ** 3) == pytest.approx(1)
    assert spearman(np.ones(9), np.arange(9.0)) == 0
    vectors = np.array([[1.0, 0.0], [3.0, 4.0], [0.0, 0.0]])  # the last has no direction
    assert word2vec.cosines(vectors, [0, 1, 0], [1, 1, 2]).tolist() == pytest.approx([0.6, 1.0, 0.0])


def test_bootstrap_samples_are_paired_and_the_p_value_is_two_sided():
    rng = np.random.default_rng(1)
    human = rng.normal(size=200)
    close, far = human + rng.normal(size=200), human + 4 * rng.normal(size=200)
    drawn = word2vec.resampled({"close": close, "again": close.copy(), "far": far}, human)
    np.testing.assert_array_equal(drawn["close"], drawn["again"])
    assert np.mean(drawn["close"]) == pytest.approx(spearman(close, human), abs=0.02)
    assert bootstrap_p(drawn["close"] - drawn["far"]) < 0.01
    assert bootstrap_p(drawn["far"] - drawn["close"]) < 0.01
    assert bootstrap_p(drawn["close"] - drawn["again"]) == 1
    assert bootstrap_p(np.linspace(-1, 3, 1001)) == pytest.approx(0.5, abs=0.01)


def test_contexts_are_the_first_occurrences():
    text = [["a", "x", "b"], ["x", "x"]]
    found = list(word2vec.occurrences(text, {"x", "b"}, 2))
    assert found == [("x", ["a"], ["b"]), ("b", ["a", "x"], []), ("x", [], ["x"])]


def test_a_folder_keeps_vectors_and_splits_text_as_the_model_does(folder):
    np.testing.assert_allclose(embeddings_of(folder, WORDS), VECTORS, atol=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Sun, moon")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["sun", "[UNK]", "moon"]
    np.testing.assert_array_equal(embeddings_of(folder, ["[UNK]"]), np.zeros((1, 3)))


def test_the_classifier_reads_the_mean_whatever_the_order_and_padding(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    torch.testing.assert_close(model.embeddings.words.weight[2:], VECTORS)
    rows = torch.tensor([[2, 3, 4, 0], [4, 2, 3, 0], [2, 3, 3, 0]])
    mask = (rows != 0).long()
    first, swapped, other = model(input_ids=rows, attention_mask=mask).logits
    torch.testing.assert_close(first, swapped)
    assert not torch.allclose(first, other)
    alone = model(input_ids=rows[:, :3], attention_mask=mask[:, :3], labels=torch.tensor([0, 0, 1]))
    torch.testing.assert_close(alone.logits[0], first)
    expected = torch.nn.functional.cross_entropy(alone.logits, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(alone.loss, expected)
