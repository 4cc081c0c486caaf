"""Gradients of a global batch equal the gradients of its loss, for any split.

The loss is the sum over its predictions divided by their number; of several objectives, the weighted sum of their
losses, each divided by the weights of its own predictions.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrain.config import Config
from pretrain.data import BatchStage
from pretrain.model import Encoder
from tests.pretrain.engine import gradients_worker as worker
from tests.support.gradient_parts import norm, norms_of_parts
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module")
def references() -> dict[str, dict[str, np.ndarray]]:
    return {"masked": masked_reference(), "mixture": mixture_reference()}


def mixture_reference() -> dict[str, np.ndarray]:
    """A loss written out in plain PyTorch. Each objective has a model of its own view, with the same weights."""
    loader = worker.loader(BatchStage(0, worker.SEQ_LEN, 1, 1, worker.GLOBAL_ROWS), 0, "mixture")
    (batch,) = loader.step(0, loader.mixture.start()).batches
    encoder = worker.model()
    causal = Encoder(replace(worker.SHAPE, causal=True))
    half, losses = worker.GLOBAL_ROWS // 2 * worker.SEQ_LEN, []
    of_masked, of_causal = np.split(batch.tokens, 2)
    assert (of_masked == worker.VOCABULARY.mask).any()
    assert not (of_causal == worker.VOCABULARY.mask).any()
    causal.load_state_dict(encoder.state_dict())
    parameters = dict(encoder.named_parameters())
    for tokens, first, call in ((of_masked, 0, encoder), (of_causal, half, causal)):
        bounds = batch.cu_seqlens[(batch.cu_seqlens >= first) & (batch.cu_seqlens <= first + half)] - first
        here = (batch.masked_positions >= first) & (batch.masked_positions < first + half)
        arrays = tokens, batch.positions[first : first + half], bounds, batch.masked_positions[here] - first
        *stream, places = map(torch.from_numpy, arrays)
        states = torch.func.functional_call(_Logits(call), {f"model.{k}": v for k, v in parameters.items()}, (stream,))
        labels = torch.from_numpy(batch.labels[here])
        each = F.cross_entropy(states[places], labels, reduction="none")
        weights = torch.where(labels < 50, 0.5, 2.0) * (labels >= 0)
        losses.append((each * weights).sum() / weights.sum())
    return _found(encoder, losses, (1.0, 3.0))


class _Logits(torch.nn.Module):
    def __init__(self, model: Encoder):
        super().__init__()
        self.model = model

    def forward(self, stream: list[torch.Tensor]) -> torch.Tensor:
        return self.model.logits(self.model.hidden(*stream, worker.SEQ_LEN))


def masked_reference() -> dict[str, np.ndarray]:
    """Plain PyTorch, one process, one batch."""
    torch.set_num_threads(1)
    loader = worker.loader(BatchStage(0, worker.SEQ_LEN, 1, 1, worker.GLOBAL_ROWS), 0)
    (batch,) = loader.step(0, loader.mixture.start()).batches
    encoder = worker.model()
    prediction = encoder(
        *(
            torch.from_numpy(array)
            for array in (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
        ),
        seq_len=worker.SEQ_LEN,
    )
    per_row = (batch.labels.reshape(worker.GLOBAL_ROWS, -1) >= 0).sum(axis=1)
    assert len(set(per_row.tolist())) > 1, "rows must differ, or a mean of means would pass"
    return _found(encoder, [prediction.loss / prediction.predictions])


def _found(encoder: Encoder, losses: list[torch.Tensor], weights: tuple[float, ...] = (1.0,)) -> dict[str, np.ndarray]:
    sum(weight * loss for weight, loss in zip(weights, losses, strict=True)).backward()
    found = {name: p.grad.numpy() for name, p in encoder.named_parameters()}
    norms = norms_of_parts(found)
    whole = norm([*found.values()])
    assert whole > Config.model_fields["optim"].default.grad_clip, "or norms after clipping would pass for those before"
    return found | norms | {"loss": np.array([loss.item() for loss in losses]), "norm": whole}


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_over_zero_stages_and_accumulation(world_size, references, tmp_path):
    run_ranks("tests.pretrain.engine.gradients_worker", world_size, str(tmp_path))
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(worker.runs(world_size))
    for file in files:
        found, reference = np.load(file), references[file.name.split("-")[0]]
        assert set(found.files) == set(reference)
        for name, wanted in reference.items():
            np.testing.assert_allclose(
                found[name], wanted, rtol=1e-4, atol=1e-6 * max(1e-3, np.abs(wanted).max()), err_msg=f"{file} {name}"
            )
