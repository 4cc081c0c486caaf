"""Word2Vec on the text of masked models, as the baseline below them: word similarity and SST-2.

    python -m experiments.word2vec models/natural --data data/train --similarity 'wordsim/*.txt'
        --train sst2-train.tsv --valid sst2-dev.tsv

gensim's skip-gram and CBOW (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space",
arXiv:1301.3781) read the data set that the models were trained on, as whole words. Word similarity is Spearman's rank
correlation of cosines and human scores. For SST-2 the vectors are the embeddings of a mean-pooled classifier, which is
fine-tuned like the models: the same examples, head, seeds and search of the learning rate. Needs
`pip install maskwright[benchmark]`.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from data_prep.common.errors import UserError
from data_prep.common.intervals import ALPHA
from data_prep.format import Dataset
from data_prep.storage import read_lines
from evaluation.study.paired_statistics import holm
from experiments import sst2_finetuning
from experiments.charts import COLOURS, chart
from experiments.common import keep_settings, options, parsed, run, table, write_page
from experiments.mean_of_embeddings import save_word_vectors
from experiments.sst2_finetuning import Tuned, accuracy_table, fine_tune, plot_accuracy
from pretrain.export import ids_around, load_language_model, load_tokenizer, model_folder

KINDS = {"skip-gram": 1, "CBOW": 0}
_CHUNK = 1000  # words of a sentence for gensim, which cuts longer ones off at 10,000
_RESAMPLES = 2000
_AROUND = 12  # words on each side of a context
Vectors = NDArray[np.float64]


@dataclass(frozen=True)
class Similarities:
    """One file of word pairs. first, second: words. human: scores [pairs]."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    human: NDArray[np.float64]

    def among(self, words: Mapping[str, int]) -> "Similarities":
        """The pairs whose two words are both known."""
        kept = [n for n, pair in enumerate(zip(self.first, self.second, strict=True)) if all(w in words for w in pair)]
        first, second = (tuple(side[n] for n in kept) for side in (self.first, self.second))
        return Similarities(self.name, first, second, self.human[kept])


def main() -> None:
    args = arguments()
    dataset = Dataset(args.data)
    tokenizer = load_tokenizer(model_folder(Path(args.models[0])))
    text = words_of(dataset, tokenizer)
    for kind, is_skip_gram in KINDS.items():
        if not (args.work / kind).exists():
            words, vectors = train(text, is_skip_gram, args)
            save_word_vectors(args.work / kind, words, vectors, tokenizer.backend_tokenizer)
    counts = Counter(word for sentence in text for word in sentence)
    known = {word: count for word, count in counts.items() if count >= args.min_count}
    pairs = [read_similarities(path) for path in sorted(args.similarity.parent.glob(args.similarity.name))]
    asked = [one.among(known) for one in pairs]
    needed = sorted({word for one in asked for word in (*one.first, *one.second)})
    tables = {kind: embeddings_of(args.work / kind, needed) for kind in KINDS}
    for name in args.models:
        tables |= model_vectors(Path(name), needed, text, args.contexts)
    tuned = {kind: fine_tune(args, kind, args.work / kind) for kind in KINDS}
    tuned["random embeddings"] = fine_tune(args, "random-embeddings", args.work / "CBOW", init="random")
    for name in args.models:
        tuned[Path(name).name] = fine_tune(args, Path(name).name, model_folder(Path(name)))
    report(args, dataset, pairs, asked, needed, tables, tuned, sum(counts.values()))


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "word2vec", "word2vec")
    parser.add_argument("models", nargs="+", help="masked models of one tokenizer: Hugging Face folders or runs")
    parser.add_argument("--data", required=True, type=Path, help="the data set they were trained on")
    parser.add_argument("--similarity", required=True, type=Path, help="files of WORD WORD SCORE, a quoted glob")
    parser.add_argument("--size", type=int, default=192, help="of the vectors: the width of the models")
    parser.add_argument("--epochs-of-vectors", type=int, default=5, help="gensim's default")
    parser.add_argument("--min-count", type=int, default=5, help="occurrences of a word that has a vector")
    parser.add_argument("--contexts", type=int, default=10, help="occurrences over which a model's states are averaged")
    parser.add_argument("--about", default="", help="a sentence about the models, for the page")
    sst2_finetuning.add_options(parser)
    quick = {"size": 8, "epochs_of_vectors": 1, "contexts": 1}
    args = parsed(parser, "train", "valid", **sst2_finetuning.QUICK | quick)
    args.data = str(args.data.absolute())
    return sst2_finetuning.keep_search(keep_settings(args, "data", "size", "epochs_of_vectors", "min_count"))


def words_of(dataset: Dataset, tokenizer: Any) -> list[list[str]]:
    """The text of a data set as sentences of at most _CHUNK whole words, none over the end of a document."""
    names = np.array(tokenizer.convert_ids_to_tokens(range(dataset.manifest.tokenizer.vocab_size)))
    specials = {*tokenizer.all_special_tokens}
    sentences: list[list[str]] = []
    for block in range(dataset.n_blocks):
        tokens = dataset.tokens(block)
        starts = dataset.token_starts(block, tokens)
        for first, end in itertools.pairwise([0, *dataset.document_ends(block).tolist()]):
            words = joined(names[tokens[first:end]].tolist(), starts[first:end].tolist())
            words = [word for word in words if word not in specials]  # an unknown word
            sentences += [words[at : at + _CHUNK] for at in range(0, len(words), _CHUNK)]
    return sentences


def joined(tokens: Sequence[str], begins_word: Sequence[bool]) -> list[str]:
    """Whole words from the tokens of a document; "##" of a WordPiece continuation is dropped."""
    words: list[str] = []
    for token, begins in zip(tokens, begins_word, strict=True):
        if begins or not words:
            words.append("")
        words[-1] += token if begins else token.removeprefix("##")
    return words


def train(text: list[list[str]], is_skip_gram: int, args: argparse.Namespace) -> tuple[list[str], torch.Tensor]:
    """Words and their vectors [words, size], from one thread and one seed."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise UserError("gensim is missing. Install it with: pip install 'maskwright[benchmark]'") from None
    model = Word2Vec(
        text,
        sg=is_skip_gram,
        vector_size=args.size,
        epochs=args.epochs_of_vectors,
        min_count=args.min_count,
        workers=1,
        seed=1,
    )
    return model.wv.index_to_key, torch.from_numpy(model.wv.vectors.copy())


def read_similarities(path: Path) -> Similarities:
    """A file with two words and a score a line."""
    cells = [line.split() for _, line in read_lines(str(path))]
    if any(len(row) != 3 for row in cells):
        raise UserError(f"{path} is not a file with two words and a score in each line")
    first, second, human = zip(*cells, strict=True)
    name = path.stem.removesuffix("-ALL").removesuffix("-TR-3k")
    return Similarities(
        name, tuple(map(str.lower, first)), tuple(map(str.lower, second)), np.array(human, dtype=np.float64)
    )


def embeddings_of(folder: Path, words: Sequence[str]) -> Vectors:
    """Word vectors of a folder of save_word_vectors: [words, size]."""
    from transformers import AutoModel

    weight = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach().double().numpy()
    return weight[load_tokenizer(folder).convert_tokens_to_ids(list(words))]


@torch.inference_mode()
def model_vectors(path: Path, words: Sequence[str], text: list[list[str]], contexts: int) -> dict[str, Vectors]:
    """Vectors [words, hidden] of a masked model, by name.

    embeddings: the mean of the embeddings of a word's tokens. states: the mean of all layers' states of these tokens,
    over at most `contexts` occurrences in the text (as Bommasani et al., "Interpreting Pretrained Contextualized
    Representations via Reductions to Static Embeddings", ACL 2020).
    """
    folder = model_folder(path)
    model, tokenizer = load_language_model(folder)[0], load_tokenizer(folder)
    ids, encoder = ids_around(tokenizer, folder, causal=False), model.base_model
    weight: Any = model.get_input_embeddings().weight.double()
    pieces = {word: tokenizer(word, add_special_tokens=False)["input_ids"] for word in words}
    embedded = np.stack([weight[pieces[word]].mean(0).numpy() for word in words])
    states = np.zeros_like(embedded)
    number, counts = {word: at for at, word in enumerate(words)}, np.zeros(len(words))
    for word, before, after in occurrences(text, set(words), contexts):
        left, right = (tokenizer(" ".join(side), add_special_tokens=False)["input_ids"] for side in (before, after))
        row = torch.tensor([[ids["cls"], *left, *pieces[word], *right, ids["sep"]]])
        layers = encoder(input_ids=row, output_hidden_states=True).hidden_states
        here = slice(1 + len(left), 1 + len(left) + len(pieces[word]))
        states[number[word]] += torch.stack(layers)[:, 0, here].double().mean((0, 1)).numpy()
        counts[number[word]] += 1
    return {f"{path.name}, embeddings": embedded, f"{path.name}, states": states / counts[:, None]}


def occurrences(text: list[list[str]], words: set[str], most: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """The first `most` occurrences of each word, with the words around it."""
    seen: Counter[str] = Counter()
    for sentence in text:
        for at, word in enumerate(sentence):
            if word in words and seen[word] < most:
                seen[word] += 1
                yield word, sentence[max(0, at - _AROUND) : at], sentence[at + 1 : at + 1 + _AROUND]


def cosines(vectors: Vectors, first: Sequence[int], second: Sequence[int]) -> NDArray[np.float64]:
    """Cosine of each pair of rows; a zero vector has cosine 0 with all."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return np.einsum("pd,pd->p", unit[list(first)], unit[list(second)])


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's rank correlation: the correlation of average ranks; 0 if all values are equal."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (one, other))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else 0.0


def resampled(scores: Mapping[str, NDArray[np.float64]], human: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Spearman correlations of each model in the same bootstrap samples of the pairs: [_RESAMPLES]."""
    random, n = np.random.default_rng(0), len(human)
    samples = [random.integers(n, size=n) for _ in range(_RESAMPLES)]
    return {
        name: np.array([spearman(values[some], human[some]) for some in samples]) for name, values in scores.items()
    }


def bootstrap_p(differences: NDArray[np.float64]) -> float:
    """Two-sided p-value of bootstrap differences: twice the smaller share on one side of zero."""
    n = len(differences)
    return min(1.0, 2 * (1 + min((differences <= 0).sum(), (differences >= 0).sum())) / (1 + n))


def report(
    args: argparse.Namespace,
    dataset: Dataset,
    pairs: Sequence[Similarities],
    asked: Sequence[Similarities],
    needed: Sequence[str],
    tables: Mapping[str, Vectors],
    tuned: Mapping[str, Tuned],
    n_words: int,
) -> None:
    number = {word: at for at, word in enumerate(needed)}
    found: dict[str, dict[str, float]] = {}
    drawn: dict[str, dict[str, NDArray[np.float64]]] = {}
    for one in asked:
        first, second = ([number[word] for word in side] for side in (one.first, one.second))
        scores = {name: cosines(vectors, first, second) for name, vectors in tables.items()}
        found[one.name] = {name: spearman(values, one.human) for name, values in scores.items()}
        drawn[one.name] = resampled(scores, one.human)
    picture = args.out.with_suffix(".png")
    draw_figure(picture, found, drawn, tuned)
    size, epochs = args.size, args.epochs_of_vectors
    page = f"""# Word2Vec below masked models

gensim's skip-gram and CBOW read the {dataset.manifest.totals.tokens / 1e6:.2f} M tokens ({n_words / 1e6:.2f} M words)
that the models were trained on, {epochs} times, as whole words; vectors of {size}, gensim's other defaults.
{args.about}

## Word similarity

{similarity_table(pairs, asked, found, drawn)}

![Word similarity, and accuracy on SST-2]({picture.name})

- Spearman's rank correlation of cosines and human scores, with 95% bootstrap intervals over pairs. Only pairs whose two
  words occur {args.min_count} times in the text count, the same for all vectors.
- Brackets after a difference: its paired 95% bootstrap interval. "*" marks significant differences (5%, by Holm's
  procedure over all differences of the table).
- Of a model: the embeddings of a word's tokens, and the mean of the states of all layers at them over
  {args.contexts} occurrences in the text ([Bommasani et al., 2020](https://aclanthology.org/2020.acl-main.431)).

## SST-2

{accuracy_table(tuned, "skip-gram")}

- {sst2_finetuning.about(args)}.
- Word vectors are the trained embeddings of a classifier: layer norm, mean over words, ModernBERT's head. "Random
  embeddings" is the same classifier without pretraining.
"""
    write_page(args.out, page, ("torch", "transformers", "gensim", "scipy"))


def similarity_table(
    pairs: Sequence[Similarities],
    asked: Sequence[Similarities],
    found: Mapping[str, Mapping[str, float]],
    drawn: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> str:
    """Correlations by file and vectors, and differences from skip-gram, which are one family."""
    reference = next(iter(KINDS))
    keys = [(file, name) for file in found for name in found[file] if name != reference]
    minus = {(file, name): drawn[file][name] - drawn[file][reference] for file, name in keys}
    significant = {
        key for key, (_, p, _) in zip(keys, holm([*map(bootstrap_p, minus.values())]), strict=True) if p < ALPHA
    }
    header = [
        "vectors",
        *(
            f"{all_of.name}, {len(used.human)} of {len(all_of.human)} pairs"
            for all_of, used in zip(pairs, asked, strict=True)
        ),
    ]
    rows = []
    for name in next(iter(found.values())):
        rows.append([name, *(_estimate(found[file][name], drawn[file][name], "") for file in found)])
        if name != reference:
            cells = [
                _estimate(found[file][name] - found[file][reference], minus[file, name], "+")
                + ("*" if (file, name) in significant else "")
                for file in found
            ]
            rows.append([f"- minus {reference}", *cells])
    return table(header, *rows)


def _estimate(value: float, samples: NDArray[np.float64], sign: str) -> str:
    low, high = np.percentile(samples, [2.5, 97.5])
    return f"{value:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"


def draw_figure(
    path: Path,
    found: Mapping[str, Mapping[str, float]],
    drawn: Mapping[str, Mapping[str, NDArray[np.float64]]],
    tuned: Mapping[str, Tuned],
) -> None:
    names = list(next(iter(found.values())))
    with chart(path, 11, 4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        for at, (name, colour) in enumerate(zip(names, itertools.cycle(COLOURS), strict=False)):
            places = [place + (at - len(names) / 2) * 0.8 / len(names) for place in range(len(found))]
            values = [of[name] for of in found.values()]
            left.bar(places, values, 0.8 / len(names), align="edge", color=colour, label=name)
            for place, samples in zip(places, drawn.values(), strict=True):
                middle = place + 0.4 / len(names)
                left.plot([middle, middle], np.percentile(samples[name], [2.5, 97.5]), color="black", linewidth=1)
        left.set_xticks(range(len(found)), list(found))
        left.set_ylabel("Spearman's correlation with human scores")
        left.legend()
        plot_accuracy(right, tuned, COLOURS[0])


if __name__ == "__main__":
    run(main)
