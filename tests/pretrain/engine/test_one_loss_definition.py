"""Gradients of a global batch equal the gradients of its summed loss over its predictions, for any split."""

import numpy as np
import pytest
import torch

from pretrain.config import Config
from pretrain.data import BatchPhase
from tests.pretrain.engine import gradients_worker as worker
from tests.support.gradient_parts import norm, norms_of_parts
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """Plain PyTorch, one process, one batch."""
    torch.set_num_threads(1)
    loader = worker.loader(BatchPhase(0, worker.SEQ_LEN, 1, 1, worker.GLOBAL_ROWS), 0)
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
    loss = prediction.loss / prediction.predictions
    loss.backward()
    found = {name: p.grad.numpy() for name, p in encoder.named_parameters()}
    norms = norms_of_parts(found)
    whole = norm([*found.values()])
    assert whole > Config.model_fields["optim"].default.grad_clip, "or norms after clipping would pass for those before"
    return found | norms | {"loss": np.array(loss.item()), "norm": whole}


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_over_zero_stages_and_accumulation(world_size, reference, tmp_path):
    run_ranks("tests.pretrain.engine.gradients_worker", world_size, str(tmp_path))
    files = sorted(tmp_path.glob("*.npz"))
    assert len(files) == len(worker.ZERO) * len(worker.ACCUMULATIONS)
    for file in files:
        found = np.load(file)
        assert set(found.files) == set(reference)
        for name, wanted in reference.items():
            np.testing.assert_allclose(
                found[name], wanted, rtol=1e-4, atol=1e-6 * max(1e-3, np.abs(wanted).max()), err_msg=f"{file} {name}"
            )
