"""Layer measures of models: similarity of consecutive layers, and information about tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from experiments.layers.measures import (
    GROUPS,
    Estimate,
    cluster,
    covariance,
    entropy,
    estimate,
    linear_cka,
    product_sums,
    pwcca,
    share_told,
)
from experiments.layers.position_sample import (
    Indices,
    Places,
    PositionSample,
    SampleSettings,
    held_out_rows,
    masked_sample,
    plain_sample,
)
from pretrain.export import check_vocabulary, load_language_model, load_tokenizer, model_folder
from pretrain.masking import Vocabulary
from pretrain.model import longest_text
from pretrain.philox import derive_key, draw

_ROWS = 32  # of a forward pass
_USUAL_LENGTH = 128  # slots of a row, unless a model accepts fewer
States = NDArray[np.float32]
SIMILARITIES = {"pwcca": pwcca, "cka": linear_cka}
COMPARED = ("all", "predicted", "unmasked")  # the kinds of positions at which layers are compared
ASKED = {  # by kind of position: the tokens whose information is measured
    "all": ("seen", "target"),
    "unmasked": ("seen",),
    "masked": ("target",),
    "random": ("seen", "target"),
    "kept": ("seen",),
}
FEWEST = 100  # positions that a measure needs


@dataclass(frozen=True)
class Similarity:
    """Similarity of layers l and l + 1 at one kind of position, for l from 0 (the embeddings) to L - 1.

    measure: "pwcca" or "cka". positions: their number.
    chance: the measure for shuffled positions, so that the states of the two layers are unrelated.
    """

    kind: str
    measure: str
    positions: int
    between: list[Estimate]
    chance: list[float]


@dataclass(frozen=True)
class Information:
    """Share of a token's entropy that the states of layer l explain, for l from 0 (the embeddings) to L.

    kind: of positions. of: "seen" (the input token) or "target" (the token to predict).
    positions: number of positions with a frequent token. tokens: number of distinct tokens. entropy: of these, in nats.
    since_first, until_last: paired differences, of each layer minus layer 0, and of the last layer minus each layer.
    """

    kind: str
    of: str
    positions: int
    tokens: int
    entropy: float
    at: list[Estimate]
    since_first: list[Estimate]
    until_last: list[Estimate]


@dataclass(frozen=True)
class ModelMeasures:
    """Measures of one model on one text.

    objective: "mlm", "clm" or "prefix". text: "natural" or "shuffled words". layers: their number. hidden: their width.
    """

    model: str
    objective: str
    text: str
    layers: int
    hidden: int
    similarities: list[Similarity]
    information: list[Information]


def measure(
    names: Sequence[str], texts: dict[str, Dataset], settings: SampleSettings, seq_len: int | None
) -> tuple[SampleSettings, Iterator[ModelMeasures]]:
    """Return the final settings, and an iterator that measures each model on each text.

    Args:
        names: Hugging Face folders or runs. texts: data sets by what their text is, such as "natural".
        seq_len: slots of a row; default: 128, or the shortest limit of the models.

    Raises:
        UserError: before any measurement, if a folder is not a language model, a tokenizer differs from the data
            set's, or seq_len exceeds a model's limit.
    """
    folders = {name: model_folder(Path(name)) for name in names}
    usual = _USUAL_LENGTH
    for name, folder in folders.items():
        for dataset in texts.values():
            check_vocabulary(name, load_tokenizer(folder).get_vocab(), dataset)
        if limit := longest_text(load_language_model(folder)[0]):
            if seq_len and seq_len > limit:
                raise UserError(f"{name} takes texts of {limit} tokens at most; choose a smaller --seq-len")
            usual = min(usual, limit)
    settings = replace(settings, seq_len=seq_len or usual)
    return settings, _measure(folders, texts, settings)


def _measure(folders: dict[str, Path], texts: dict[str, Dataset], settings: SampleSettings) -> Iterator[ModelMeasures]:
    vocabulary = Vocabulary.of(next(iter(texts.values())).manifest.tokenizer)
    rows = {text: held_out_rows(dataset, settings, vocabulary) for text, dataset in texts.items()}
    for name, folder in folders.items():
        model, causal = load_language_model(folder)
        objective = "prefix" if hasattr(model.config, "prefix_sep_token_id") else "clm" if causal else "mlm"
        for text, read in rows.items():
            sample = (masked_sample if objective == "mlm" else plain_sample)(read, vocabulary, settings)
            try:
                states = states_of(model, sample, vocabulary.pad)
                found = analyze(states, sample, settings)
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
            n_states, _, hidden = next(iter(states.values())).shape
            yield ModelMeasures(name, objective, text, n_states - 1, hidden, *found)


@torch.inference_mode()
def states_of(model: PreTrainedModel, sample: PositionSample, pad: int) -> dict[str, States]:
    """States by kind of position: float32 [L + 1, P, d]. Index 0 is the embeddings, then L layers follow.

    These are the `hidden_states` of transformers. Moves the model to the GPU if there is one.

    Raises UserError if the model returns no hidden states, or values that are not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = model.base_model.to(device)  # the logits of the head are not needed
    found: dict[str, States] = {}
    for first in range(0, len(sample.tokens), _ROWS):
        tokens = torch.from_numpy(sample.tokens[first : first + _ROWS]).to(device)
        here = {
            kind: np.flatnonzero((places.row >= first) & (places.row < first + _ROWS))
            for kind, places in sample.places.items()
        }
        layers = encoder(
            input_ids=tokens, attention_mask=(tokens != pad).long(), output_hidden_states=True
        ).hidden_states
        if not layers:
            raise UserError(f"a {type(model).__name__} gives no hidden states. Choose a model that does.")
        for kind, which in here.items():
            places = sample.places[kind]
            rows = torch.from_numpy(places.row[which] - first).to(device)
            columns = torch.from_numpy(places.column[which]).to(device)
            if kind not in found:
                found[kind] = np.empty((len(layers), len(places), layers[0].shape[-1]), dtype=np.float32)
            for layer, states in enumerate(layers):
                found[kind][layer, which] = states[rows, columns].float().cpu().numpy()
    if not all(np.isfinite(states).all() for states in found.values()):
        raise UserError("the model's hidden states are not all finite; it is damaged, or its training diverged")
    return found


def analyze(
    states: dict[str, States], sample: PositionSample, settings: SampleSettings
) -> tuple[list[Similarity], list[Information]]:
    """Measure the states of each kind of position. Kinds with fewer than FEWEST positions are left out.

    Information also needs more positions than clusters.

    Raises UserError if no kind has enough positions.
    """
    compared = [kind for kind in COMPARED if kind in states and len(sample.places[kind]) >= FEWEST]
    similarities = [
        similarity
        for kind in compared
        for similarity in _similarities(kind, states[kind], sample.places[kind].group, settings.seed)
    ]
    asked = [(kind, of) for kind, names in ASKED.items() if kind in states for of in names]
    information = [
        found
        for kind, of in asked
        if (found := _information(kind, of, states[kind], sample.places[kind], sample.frequent, settings))
    ]
    if not similarities and not information:
        raise UserError(f"the text has fewer than {FEWEST} positions of any kind. Use more text, or another --seq-len.")
    return similarities, information


def _similarities(kind: str, states: States, group: Indices, seed: int) -> list[Similarity]:
    between: dict[str, list[Estimate]] = {name: [] for name in SIMILARITIES}
    chance: dict[str, list[float]] = {name: [] for name in SIMILARITIES}
    shuffled = np.argsort(draw(derive_key(seed, "analysis chance"), states.shape[1], 0, 0, 0), kind="stable")
    for lower, upper in pairwise(states):
        x, y = lower - lower.mean(axis=0), upper - upper.mean(axis=0)
        groups = [product_sums(x[group == g], y[group == g]) for g in range(GROUPS)]
        everything = np.sum(groups, axis=0)
        width = x.shape[1]
        whole = covariance(everything, width)
        covariances = [covariance(everything - left_out, width) for left_out in groups]
        unrelated = covariance(product_sums(x, y[shuffled]), width)
        for name, measure in SIMILARITIES.items():
            between[name].append(estimate(measure(whole), [measure(one) for one in covariances]))
            chance[name].append(measure(unrelated))
    return [Similarity(kind, name, len(group), between[name], chance[name]) for name in SIMILARITIES]


def _information(
    kind: str, of: str, states: States, places: Places, frequent: Indices, settings: SampleSettings
) -> Information | None:
    ids = places.seen if of == "seen" else places.target
    which = np.flatnonzero(np.isin(ids, frequent))
    tokens, group = ids[which], places.group[which]
    if len(which) < FEWEST or len(which) <= settings.clusters:
        return None
    told = np.array([_told(layer[which], tokens, group, settings) for layer in states])
    whole = np.unique(tokens, return_counts=True)[1]
    estimates = ([estimate(row[0], row[1:]) for row in rows] for rows in (told, told - told[0], told[-1] - told))
    return Information(kind, of, len(which), len(whole), entropy(whole), *estimates)


def _told(states: NDArray[np.float32], tokens: Indices, group: Indices, settings: SampleSettings) -> list[float]:
    """Share of the tokens' entropy that clusters explain: of all positions, then without each group.

    The clusters stay the same, so an interval does not cover their variation.
    """
    of_state = cluster(states, settings.clusters, settings.seed)
    kept = [np.ones(len(group), dtype=np.bool_), *(group != g for g in range(GROUPS))]
    return [share_told(of_state[which], tokens[which]) for which in kept]
