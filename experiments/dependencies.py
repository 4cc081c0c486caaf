"""Trees of pairwise dependencies in the predictions of masked models, against a treebank and a linear chain.

    python -m experiments.dependencies models/natural models/1-grams --treebank en_ewt-dev.conllu

For each pair of words i, j of a sentence x, and symmetric by their mean in both directions:

- distance: between the last states of i, with i masked and with i and j masked (Wu, Chen, Kao and Liu, "Perturbed
  Masking", ACL 2020, arXiv:2004.14786);
- pointwise: log p(x_i | x without i) - log p(x_i | x without i and j) (Hoover et al., "Linguistic Dependencies and
  Statistical Dependence", EMNLP 2021);
- information: conditional mutual information, the mean over x_j drawn from p(. | x without i and j) of KL(p(. | x
  without i) | p(. | x without i and j)), with x_j in its place (Zhang and Hashimoto, "On the Inductive Bias of Masked
  Language Modeling", NAACL 2021, arXiv:2104.05694).

The maximum spanning tree over the scores is compared with the treebank's edges, without labels and directions.
Punctuation is shown to the model, and is no part of a tree. All tokens of a word are masked together; information and
pointwise scores add up over them, distances are of their mean states.
"""

import argparse
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse.csgraph import minimum_spanning_tree

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.common.reading import read_json
from data_prep.storage import load_text, spread
from evaluation.finetuning.label_tasks import first_tokens
from evaluation.likelihood.evaluate_models import paired_bootstrap
from experiments.charts import COLOURS, chart
from experiments.common import options, parsed, run, table, write_page
from experiments.paired import compare, share
from pretrain.export import ids_around, load_language_model, load_tokenizer, model_digest, model_folder
from pretrain.model import native_encoder
from pretrain.philox import derive_key, draw

SCORES = {
    "distance": "perturbed masking",
    "pointwise": "pointwise information",
    "information": "conditional mutual information",
}
CHAIN, RANDOM = "linear chain", "random trees"
_SLOTS = 4096  # of a forward pass
Edges = frozenset[tuple[int, int]]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Sentence:
    """words: all, in order. nodes: which of them are no punctuation. edges: pairs (low, high) of places in nodes."""

    words: tuple[str, ...]
    nodes: tuple[int, ...]
    edges: Edges


@dataclass(frozen=True)
class Arm:
    """Agreement of the trees of one kind of scores with the treebank, by sentence.

    hits: edges of both. far: those between words that are not neighbours. won, compared: see `wins`.
    """

    name: str
    hits: list[int]
    far: list[int]
    won: list[float]
    compared: list[int]

    @classmethod
    def of(cls, name: str, scores: Iterable[Matrix], sentences: Sequence[Sentence]) -> "Arm":
        rows = []
        for values, sentence in zip(scores, sentences, strict=True):
            tree, gold = spanning_tree(values), sentence.edges
            rows.append((attached(tree, gold), attached(tree, gold, far=True), *wins(values, gold)))
        return cls(name, *(list(column) for column in zip(*rows, strict=True)))


def main() -> None:
    args = arguments()
    sentences = chosen(parse(load_text(str(args.treebank))), args.shortest, args.longest, args.sentences)
    random_of = [random_scores(len(one.nodes), number) for number, one in enumerate(sentences)]
    arms = [Arm.of(RANDOM, random_of, sentences)]
    for name in args.models:
        file = args.work / f"{key(args, name)}.json"
        if not file.exists():
            write_json(file, [asdict(arm) for arm in arms_of(Path(name), sentences, args.samples)])
        arms += read_json(file, list[Arm])
    report(args, sentences, arms)


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "dependencies", "dependencies")
    parser.add_argument("models", nargs="+", help="masked models: Hugging Face folders or runs")
    parser.add_argument("--treebank", required=True, type=Path, help="a CoNLL-U file, also compressed")
    parser.add_argument("--sentences", type=int, default=400, help="evenly spaced among sentences of the right length")
    parser.add_argument("--shortest", type=int, default=4, help="words of a sentence, without punctuation")
    parser.add_argument("--longest", type=int, default=12)
    parser.add_argument("--samples", type=int, default=4, help="draws of a word for the mutual information")
    parser.add_argument("--about", default="", help="a sentence about the models, for the page")
    return parsed(parser, "treebank", sentences=3, longest=6, samples=1)


def key(args: argparse.Namespace, name: str) -> str:
    """File name of a model's results: they depend on the model and on these options."""
    chosen_by = (args.sentences, args.shortest, args.longest, args.samples)
    return "-".join([model_digest(model_folder(Path(name)))[:16], args.treebank.name, *map(str, chosen_by)])


def parse(text: str) -> list[Sentence]:
    """The sentences of a CoNLL-U file; edges from or to punctuation and the root are left out."""
    return [_sentence(block.split("\n")) for block in text.strip().split("\n\n")]


def _sentence(lines: Sequence[str]) -> Sentence:
    rows = [line.split("\t") for line in lines if line[:1].isdigit()]
    rows = [row for row in rows if row[0].isdigit()]  # not the ranges of contractions, nor empty nodes
    nodes = [number for number, row in enumerate(rows) if row[3] != "PUNCT"]
    place = {number: at for at, number in enumerate(nodes)}
    pairs = [(place.get(number), place.get(int(row[6]) - 1)) for number, row in enumerate(rows)]
    edges = [(min(one, head), max(one, head)) for one, head in pairs if one is not None and head is not None]
    return Sentence(tuple(row[1] for row in rows), tuple(nodes), frozenset(edges))


def chosen(sentences: list[Sentence], shortest: int, longest: int, count: int) -> list[Sentence]:
    return spread([one for one in sentences if shortest <= len(one.nodes) <= longest], count)


def spanning_tree(scores: Matrix) -> Edges:
    """Edges (low, high) of the tree with the largest sum of symmetric scores [n, n]; the diagonal is ignored."""
    n = len(scores)
    upper = np.triu(np.ones((n, n), dtype=bool), 1)
    costs = np.zeros((n, n))
    costs[upper] = scores[upper].max(initial=0) - scores[upper] + 1  # positive: a zero is no edge in scipy
    rows, columns = minimum_spanning_tree(costs).nonzero()
    return frozenset((min(i, j), max(i, j)) for i, j in zip(rows.tolist(), columns.tolist(), strict=True))


def chain(n: int) -> Edges:
    """Edges between neighbours."""
    return frozenset((i, i + 1) for i in range(n - 1))


def random_scores(n: int, sentence: int) -> Matrix:
    draws = draw(derive_key(0, "dependencies random"), n * n, 0, 0, sentence).reshape(n, n)
    return (draws >> np.uint64(11)).astype(np.float64) / 2**53


def attached(tree: Edges, gold: Edges, far: bool = False) -> int:
    """Number of gold edges in the tree; far: only edges between words that are not neighbours."""
    return sum(not far or high - low > 1 for low, high in tree & gold)


def wins(scores: Matrix, gold: Edges) -> tuple[float, int]:
    """How often a gold edge scores higher than another pair at the same distance in the sentence, and of how many.

    A tie counts half. Of unrelated scores it is half of them, whatever distances syntax prefers.
    """
    won, compared = 0.0, 0
    for distance in range(1, len(scores)):
        values, is_edge = (
            np.diagonal(scores, distance),
            [(i, i + distance) in gold for i in range(len(scores) - distance)],
        )
        edges, others = values[is_edge], values[np.logical_not(is_edge)]
        greater = edges[:, None] - others
        won += float((greater > 0).sum() + (greater == 0).sum() / 2)
        compared += greater.size
    return won, compared


def arms_of(path: Path, sentences: Sequence[Sentence], samples: int) -> list[Arm]:
    """The trees of a model, by score."""
    scorer = PairScorer(path, samples)
    scores = [scorer(sentence, number) for number, sentence in enumerate(sentences)]
    return [Arm.of(f"{path.name}, {title}", [of[key] for of in scores], sentences) for key, title in SCORES.items()]


class PairScorer:
    """Scores of all pairs of words of a sentence: symmetric [n, n] by name in SCORES.

    Raises UserError if the model is causal or has no native encoder.
    """

    def __init__(self, path: Path, samples: int) -> None:
        folder = model_folder(path)
        model, causal = load_language_model(folder)
        encoder = native_encoder(model)
        if causal or encoder is None:
            raise UserError(f"{path} is not a masked model of an architecture that maskwright trains")
        self._encoder, self._size, self._samples = encoder, model.config.vocab_size, samples
        self._tokenizer = load_tokenizer(folder)
        self._ids = ids_around(self._tokenizer, folder, causal=False)

    @torch.inference_mode()
    def __call__(self, sentence: Sentence, number: int) -> dict[str, Matrix]:
        """number: keys the draws."""
        ids, parts = self._tokens(sentence)
        n = len(parts)
        pairs = list(itertools.combinations(range(n), 2))
        alone = [self._masked(ids, part) for part in parts]
        both = [self._masked(ids, parts[i] + parts[j]) for i, j in pairs]
        states, log_p = self._predict(alone + both, parts + [parts[i] + parts[j] for i, j in pairs])
        scores = {name: np.zeros((n, n)) for name in SCORES}
        drawn_rows, drawn_places, without = [], [], []
        for number_of_pair, (i, j) in enumerate(pairs):
            sizes = [len(parts[i]), len(parts[j])]
            states_ij, log_p_ij = (of[n + number_of_pair].split(sizes) for of in (states, log_p))
            for k, hidden in ((0, 1), (1, 0)):  # predict word k of the pair, the other is hidden or shown
                one, other = (i, j)[k], (i, j)[hidden]
                scores["distance"][one, other] = (states[one].mean(0) - states_ij[k].mean(0)).norm()
                labels = ids[parts[one]][:, None]
                scores["pointwise"][one, other] = (log_p[one] - log_p_ij[k]).gather(1, labels).sum()
                without.append((one, other, log_p_ij[k]))
                for sample in range(self._samples):
                    row = both[number_of_pair].clone()
                    row[parts[other]] = _drawn(log_p_ij[hidden], (number, one * n + other, sample))
                    drawn_rows.append(row)
                    drawn_places.append(parts[one])
        _, given = self._predict(drawn_rows, drawn_places)
        for at, (one, other, before) in enumerate(without):
            for after in given[at * self._samples : (at + 1) * self._samples]:
                kl = F.kl_div(before, after, log_target=True, reduction="sum")
                scores["information"][one, other] += float(kl) / self._samples
        return {name: (values + values.T) / 2 for name, values in scores.items()}

    def _tokens(self, sentence: Sentence) -> tuple[torch.Tensor, list[list[int]]]:
        """Ids [L] with specials, and the places of the tokens of each node."""
        text = " ".join(sentence.words)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        firsts = first_tokens(list(sentence.words), encoded["offset_mapping"])
        starts = [first for first in firsts if first is not None] + [len(encoded["input_ids"])]
        if len(starts) != len(firsts) + 1:
            raise UserError(f"a word has no token: {text}")
        parts = [list(range(starts[node] + 1, starts[node + 1] + 1)) for node in sentence.nodes]
        return torch.tensor([self._ids["cls"], *encoded["input_ids"], self._ids["sep"]]), parts

    def _masked(self, ids: torch.Tensor, places: list[int]) -> torch.Tensor:
        row = ids.clone()
        row[places] = self._ids["mask"]
        return row

    def _predict(
        self, rows: list[torch.Tensor], places: list[list[int]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """States [k, D] and log-probabilities [k, V] at the places of each row; rows have equal lengths."""
        states, log_p = [], []
        take = max(1, _SLOTS // len(rows[0]))
        for first in range(0, len(rows), take):
            some, at = torch.stack(rows[first : first + take]), places[first : first + take]
            count, length = some.shape
            slots = torch.tensor([row * length + place for row, here in enumerate(at) for place in here])
            bounds = torch.arange(count + 1, dtype=torch.int32) * length
            positions = torch.arange(length).repeat(count)
            hidden = self._encoder.hidden(some.reshape(-1), positions, bounds, length, slots)
            weight, bias = self._encoder.decoder_weight[: self._size], self._encoder.decoder_bias[: self._size]
            logits = F.linear(self._encoder.transformed(hidden), weight, bias)
            sizes = [len(here) for here in at]
            states += hidden.split(sizes)
            log_p += logits.log_softmax(-1).split(sizes)
        return states, log_p


def _drawn(log_p: torch.Tensor, at: tuple[int, int, int]) -> torch.Tensor:
    """A token [k] from each distribution [k, V], by inversion of a keyed uniform number."""
    uniform = draw(derive_key(0, "dependencies words"), len(log_p), *at) >> np.uint64(11)
    levels = torch.from_numpy((uniform.astype(np.float64) + 0.5) / 2**53)
    sums = log_p.double().exp().cumsum(-1)
    return torch.searchsorted(sums, (levels * sums[:, -1])[:, None])[:, 0]


def report(args: argparse.Namespace, sentences: Sequence[Sentence], arms: Sequence[Arm]) -> None:
    gold = [len(one.edges) for one in sentences]
    far = [attached(one.edges, one.edges, far=True) for one in sentences]
    linear = [attached(chain(len(one.nodes)), one.edges) for one in sentences]
    against = compare([(arm.hits, linear) for arm in arms], gold)
    halves = compare([(arm.won, np.array(arm.compared) / 2) for arm in arms], arms[0].compared)
    header = ["trees", "attachment, %", "minus the chain, points", "", "of distant words, %", "equal distance, %", ""]
    rows = [[CHAIN, share(linear, gold), "", "", share([0] * len(far), far), "", ""]]
    rows += [
        [arm.name, share(arm.hits, gold), str(minus), minus.verdict, share(arm.far, far), share(arm.won, arm.compared)]
        + [half.verdict]
        for arm, minus, half in zip(arms, against, halves, strict=True)
    ]
    above = [arm.name for arm, one in zip(arms, against, strict=True) if one.is_significant and one.difference > 0]
    better = (
        f"Better than a linear chain: {'; '.join(above)}" if above else "No tree is significantly better than a chain"
    )
    related = [arm.name for arm, one in zip(arms, halves, strict=True) if one.is_significant and one.difference > 0]
    beyond = (
        f"Related to syntax beyond distance: {'; '.join(related)}" if related else "None is related beyond distance"
    )
    picture = args.out.with_suffix(".png")
    draw_figure(picture, linear, arms, gold)
    page = f"""# Do dependencies in a masked model's predictions follow syntax?

{better}. {beyond}. {args.about}

{table(header, *rows)}

![Share of the treebank's edges in each kind of trees]({picture.name})

- {len(sentences):,} sentences of {args.treebank.name.partition(".")[0]} with {args.shortest} to {args.longest} words \
without punctuation, {sum(gold):,} edges, of which
  {sum(far):,} link words that are not neighbours ("distant").
- Attachment is the share of the treebank's edges, without labels and directions, in the maximum spanning tree over the
  scores of all pairs of words. Brackets are 95% bootstrap intervals over sentences; differences are paired.
- "Equal distance": how often an edge of the treebank scores higher than another pair of words at the same distance in
  the same sentence, {sum(arms[0].compared):,} comparisons; 50% is chance. The attachment of a chain comes from
  distance alone, this does not.
- p: paired randomization tests over sentences, adjusted by Holm's procedure for the {len(arms)} comparisons of a
  column. Models are one training run each.
- Perturbed masking: distance of a word's last state with and without the other word
  ([Wu et al., 2020](https://arxiv.org/abs/2004.14786)). Pointwise information of the two words in the text
  ([Hoover et al., 2021](https://aclanthology.org/2021.emnlp-main.234)). Conditional mutual information as in
  [Zhang and Hashimoto (2021)](https://arxiv.org/abs/2104.05694), with {args.samples} draws of each word from the model;
  they draw by Gibbs sampling.
- All tokens of a word are masked together. Punctuation is shown to the model, and is no part of a tree.
"""
    write_page(args.out, page, ("torch", "transformers", "scipy"))


def draw_figure(path: Path, linear: Sequence[int], arms: Sequence[Arm], gold: Sequence[int]) -> None:
    with chart(path, 11, 0.32 * len(arms) + 1.2) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for place, arm in enumerate(reversed(arms)):
            for axes, found, total in ((left, arm.hits, gold), (right, arm.won, arm.compared)):
                value = sum(found) / sum(total)
                interval = paired_bootstrap(np.array(found, dtype=float), np.array(total, dtype=float))
                axes.barh(place, 100 * value, color=COLOURS[0], alpha=0.8)
                axes.plot([100 * end for end in interval or (value, value)], [place, place], color="black", linewidth=1)
        left.axvline(100 * sum(linear) / sum(gold), color=COLOURS[1], linestyle="--", label=CHAIN)
        right.axvline(50, color=COLOURS[2], linestyle="--", label="chance")
        left.set_yticks(range(len(arms)), [arm.name for arm in reversed(arms)], fontsize=8)
        left.set(xlabel="% of the treebank's edges in the trees", xlim=(0, 100))
        right.set(xlabel="% of comparisons at equal distance won by an edge", xlim=(0, 100))
        left.legend()
        right.legend()


if __name__ == "__main__":
    run(main)
