"""The hidden states of an exported model at chosen positions."""

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_prep.errors import UserError
from evaluation.layers.position_sample import Places, PositionSample

_ROWS = 32  # of a forward pass

States = NDArray[np.float32]


@torch.inference_mode()
def states_of(model: PreTrainedModel, sample: PositionSample, pad: int) -> dict[str, States]:
    """States by kind of position: float32 [L + 1, P, d]. Index 0 is the embeddings, then L layers follow.

    These are the `hidden_states` of transformers. Moves the model to the GPU if there is one.

    Raises:
        UserError: if the model returns no hidden states, or values that are not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = model.base_model.to(device)  # the logits of the head are not needed
    found: dict[str, States] = {}
    for first in range(0, len(sample.tokens), _ROWS):
        tokens = torch.from_numpy(sample.tokens[first : first + _ROWS]).to(device)
        here = {kind: _within(places, first, first + _ROWS) for kind, places in sample.places.items()}
        if not any(len(which) for which in here.values()):
            continue
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


def _within(places: Places, first: int, last: int) -> NDArray[np.int64]:
    """Indices of the places in rows `first` to `last` - 1."""
    return np.flatnonzero((places.row >= first) & (places.row < last))
