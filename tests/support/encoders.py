"""Native encoders in tests."""

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from pretrain.masking import IGNORED
from pretrain.model import Encoder, EncoderShape
from pretrain.model.families import MODELS, hugging_face_config, to_hugging_face
from tests.support import streams

SEQ_LEN = 24
DOCUMENTS = [[24], [9, 12, 3], [10, 14]]  # lengths, row by row; each row is full
LENGTHS = [length for row in DOCUMENTS for length in row]
MASK = 9  # of ESM, whose token dropout depends on the shares of masks in the documents
TINY = {"hidden": 32, "layers": 4, "heads": 4, "intermediate": 72}
BASE = {"hidden": 768, "layers": 12, "heads": 12, "intermediate": 3072}
CASES = {
    "bert": {"arch": "bert", "norm_eps": 1e-12, **TINY},
    "roberta": {"arch": "roberta", "norm_eps": 1e-5, **TINY},
    "modernbert": {"arch": "modernbert", "norm_eps": 1e-5, "window": 8, **TINY},
    "eurobert": {"arch": "eurobert", "norm_eps": 1e-5, "kv_heads": 2, "rope_theta": 250_000.0, **TINY},
    "eurobert without groups": {"arch": "eurobert", "norm_eps": 1e-5, "kv_heads": 4, **TINY},
    "esm": {"arch": "esm", "norm_eps": 1e-5, "mask_id": MASK, "rope_theta": 10_000.0, **TINY},
    "causal bert": {"arch": "bert", "causal": True, **TINY},
    "causal roberta": {"arch": "roberta", "causal": True, **TINY},
    "causal modernbert": {"arch": "modernbert", "causal": True, "norm_eps": 1e-5, "window": 8, **TINY},
    "bert base": {"arch": "bert", **BASE},
    "modernbert base": {"arch": "modernbert", "norm_eps": 1e-5, **BASE, "layers": 22, "intermediate": 1152},
}


def shape(case: str) -> EncoderShape:
    return EncoderShape(vocab_size=101, max_positions=40, pad_id=1, **CASES[case])


def hugging_face(case: str, **changes: int) -> PreTrainedModel:
    torch.manual_seed(0)
    wanted = replace(shape(case), **changes)
    model = MODELS[wanted.arch][wanted.causal](hugging_face_config(wanted)).eval()
    with torch.no_grad():  # biases and norms away from 0 and 1, so that a swapped one shows
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def check_gradients(encoder: Encoder, model: PreTrainedModel) -> None:
    """Compare the gradients of all trained weights, after a backward pass of each."""
    gradients = to_hugging_face({name: p.grad for name, p in encoder.named_parameters()}, encoder.shape)
    for name, parameter in model.named_parameters():
        if "pooler" not in name and "contact_head" not in name:
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            atol = 2e-5 * wanted.abs().max().item() + 1e-7
            torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=atol)


def stream() -> dict[str, torch.Tensor]:
    found = streams.stream(LENGTHS)
    masked = torch.tensor([1, 5, 23, 25, 34, 46, 50, 71, 0])
    labels = torch.randint(5, 101, masked.shape, generator=torch.Generator().manual_seed(1))
    labels[0], labels[-1] = 0, IGNORED  # the id 0 is a token like others
    found["tokens"][masked[[0, 1, 3, 4, 6]]] = MASK
    return found | {"masked_positions": masked, "labels": labels}
