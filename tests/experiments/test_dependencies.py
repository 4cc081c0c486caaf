"""Trees of pairwise dependencies: the tree by brute force, attachment by hand, scores by transformers."""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from scipy.stats import entropy

from data_prep.common.errors import UserError
from experiments.dependencies import PairScorer, Sentence, attached, chain, chosen, parse, spanning_tree, wins
from tests.support.tiny_models import tiny_model
from tests.support.wordpiece_set import WORDS, wordpiece_set

TREEBANK = """# text = He didn't, see?
1\tHe\the\tPRON\t_\t_\t5\tnsubj\t_\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\t_\t_\t5\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t5\tadvmod\t_\t_
4\t,\t,\tPUNCT\t_\t_\t5\tpunct\t_\t_
5\tsee\tsee\tVERB\t_\t_\t0\troot\t_\t_
5.1\tit\tit\tPRON\t_\t_\t_\t_\t5:obj\t_
6\t?\t?\tPUNCT\t_\t_\t5\tpunct\t_\t_

# text = !
1\t!\t!\tPUNCT\t_\t_\t0\troot\t_\t_
2\tyes\tyes\tINTJ\t_\t_\t1\tdep\t_\t_
"""


def test_punctuation_and_the_lines_that_are_no_words_are_left_out_of_trees():
    first, second = parse(TREEBANK)
    assert first.words == ("He", "did", "n't", ",", "see", "?")
    assert first.nodes == (0, 1, 2, 4)
    assert first.edges == {(0, 3), (1, 3), (2, 3)}
    assert second == Sentence(("!", "yes"), (1,), frozenset())
    assert chosen([first, second], 2, 4, 10) == [first]


def is_tree(edges, n: int) -> bool:
    matrix = np.zeros((n, n))
    matrix[tuple(zip(*edges, strict=True))] = 1
    return connected_components(matrix, directed=False)[0] == 1


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_tree_has_the_largest_sum(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        half = rng.normal(size=(n, n))
        scores = half + half.T
        pairs = list(itertools.combinations(range(n), 2))
        trees = [set(edges) for edges in itertools.combinations(pairs, n - 1) if is_tree(edges, n)]
        assert len(trees) == n ** (n - 2)  # Cayley's formula
        assert spanning_tree(scores) == max(trees, key=lambda edges: sum(scores[edge] for edge in edges))


def test_attachment_counts_edges_of_both():
    gold = frozenset({(0, 1), (1, 3), (2, 3)})
    assert chain(4) == {(0, 1), (1, 2), (2, 3)}
    assert attached(chain(4), gold) == 2
    assert attached(chain(4), gold, far=True) == 0
    assert attached(frozenset({(1, 3), (0, 3)}), gold, far=True) == 1


def test_wins_compare_pairs_of_one_distance():
    scores = np.zeros((4, 4))
    scores[0, 1], scores[1, 2], scores[2, 3], scores[0, 2], scores[1, 3] = 3, 1, 1, 9, 8
    gold = frozenset({(0, 1), (1, 2), (1, 3)})
    # distance 1: (0, 1) above (2, 3), (1, 2) equal to it; distance 2: (1, 3) below (0, 2)
    assert wins(scores, gold) == (1.5, 3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    data = wordpiece_set(tmp_path_factory.mktemp("dependencies") / "data", [[[6, 7, 8]]], [])
    return data.tokenizer_path / "tokenizer.json"


def test_scores_are_those_of_transformers(tokenizer, tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    words = ("the", "ships", "sailed")
    folder = tiny_model(tmp_path / "mlm", tokenizer)
    tokenizer, model = (of.from_pretrained(folder) for of in (AutoTokenizer, AutoModelForMaskedLM))
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    starts = np.cumsum([1, *map(len, pieces)])
    parts = [list(range(first, end)) for first, end in itertools.pairwise(starts)]
    ids = torch.tensor([tokenizer.cls_token_id, *itertools.chain(*pieces), tokenizer.sep_token_id])

    @torch.inference_mode()
    def read(masked: list[int], places: list[int], put: dict[int, int] | None = None):
        row = ids.clone()
        row[masked] = tokenizer.mask_token_id
        for place, id in (put or {}).items():
            row[place] = id
        output = model(input_ids=row[None], output_hidden_states=True)
        return output.hidden_states[-1][0, places], output.logits[0, places].softmax(-1)

    found = PairScorer(folder, 2000)(Sentence(words, (0, 1, 2), frozenset()), 0)
    expected = {name: np.zeros((3, 3)) for name in found}
    for i, j in itertools.permutations(range(3), 2):
        (state, p), (state_ij, p_ij) = read(parts[i], parts[i]), read(parts[i] + parts[j], parts[i])
        expected["distance"][i, j] = (state.mean(0) - state_ij.mean(0)).norm()
        of_i = ids[parts[i]]
        expected["pointwise"][i, j] = (p[range(len(of_i)), of_i] / p_ij[range(len(of_i)), of_i]).log().sum()
        of_j = read(parts[i] + parts[j], parts[j])[1]
        for put in itertools.product(range(len(WORDS)), repeat=len(parts[j])):  # the exact mean over all words j
            given = read(parts[i], parts[i], dict(zip(parts[j], put, strict=True)))[1]
            kl = sum(entropy(given[k], p_ij[k]) for k in range(len(parts[i])))
            expected["information"][i, j] += float(of_j[range(len(put)), put].prod()) * kl
    assert [len(part) for part in parts] == [1, 2, 2]
    for name, values in found.items():
        tolerance = {"rel": 0.1} if name == "information" else {"abs": 1e-3}
        mean = (expected[name] + expected[name].T) / 2
        np.testing.assert_array_equal(values, values.T)
        others = ~np.eye(3, dtype=bool)
        assert values[others].tolist() == pytest.approx(mean[others].tolist(), **tolerance)


def test_a_causal_model_is_refused(tokenizer, tmp_path):
    with pytest.raises(UserError, match="is not a masked model"):
        PairScorer(tiny_model(tmp_path / "clm", tokenizer, causal=True), 1)
