"""Layer measures of one model on one text: similarity of consecutive layers, and information about tokens."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_prep.errors import UserError
from data_prep.format import entropy
from evaluation.layers.hidden_states import States, states_of
from evaluation.layers.jackknife import GROUPS, Estimate, estimate
from evaluation.layers.mutual_information import cluster, counts_of, share_told
from evaluation.layers.position_sample import Indices, Places, PositionSample, SampleSettings
from evaluation.layers.similarity import Products, linear_cka, pwcca
from pretrain.philox import derive_key, draw

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
    """

    kind: str
    of: str
    positions: int
    tokens: int
    entropy: float
    at: list[Estimate]


@dataclass(frozen=True)
class LayerMeasures:
    """All measures of a model on a text."""

    layers: int
    hidden: int
    similarities: list[Similarity]
    information: list[Information]


def analyze(model: PreTrainedModel, sample: PositionSample, pad: int, settings: SampleSettings) -> LayerMeasures:
    """Measure a model. Kinds with fewer than FEWEST positions are left out.

    Information also needs more positions than clusters.

    Raises:
        UserError: as states_of, and if no kind has enough positions.
    """
    states = states_of(model, sample, pad)
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
    layers, _, hidden = next(iter(states.values())).shape
    return LayerMeasures(layers - 1, hidden, similarities, information)


def _similarities(kind: str, states: States, group: Indices, seed: int) -> list[Similarity]:
    between: dict[str, list[Estimate]] = {name: [] for name in SIMILARITIES}
    chance: dict[str, list[float]] = {name: [] for name in SIMILARITIES}
    shuffled = np.argsort(draw(derive_key(seed, "analysis chance"), states.shape[1], 0, 0, 0), kind="stable")
    for lower, upper in pairwise(states):
        x, y = lower - lower.mean(axis=0), upper - upper.mean(axis=0)
        groups = [Products.of(x[group == g], y[group == g]) for g in range(GROUPS)]
        whole = sum(groups[1:], groups[0])
        covariances = [(whole - left_out).covariance() for left_out in groups]
        unrelated = Products.of(x, y[shuffled]).covariance()
        for name, measure in SIMILARITIES.items():
            without = [measure(covariance) for covariance in covariances]
            between[name].append(estimate(measure(whole.covariance()), without))
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
    at = [_told(layer[which], tokens, group, settings) for layer in states]
    whole = np.unique(tokens, return_counts=True)[1]
    return Information(kind, of, len(which), len(whole), entropy(whole), at)


def _told(states: NDArray[np.float32], tokens: Indices, group: Indices, settings: SampleSettings) -> Estimate:
    """Share of the tokens' entropy that clusters explain. The interval keeps the clusters fixed."""
    of_state = cluster(states, settings.clusters, settings.seed)
    left_out = [share_told(counts_of(of_state[group != g], tokens[group != g])) for g in range(GROUPS)]
    return estimate(share_told(counts_of(of_state, tokens)), left_out)
