"""Held-out losses computed apart from the trainer."""

from pathlib import Path
from typing import Any

import torch

from data_prep.format import Dataset
from pretrain.config import Config
from pretrain.data import BatchStage, Loader
from pretrain.model import Encoder
from tests.support import runs


@torch.no_grad()
def held_out_loss(encoder: Encoder, data: Path, **overrides: Any) -> float:
    """The mean loss over the held-out rows of tiny_config."""
    config = Config.model_validate(runs.tiny_config(data, data, **overrides))
    loader = Loader.for_held_out(config, Dataset(data / "valid"), BatchStage.of_run(config, world_size=1), rank=0)
    loss = predictions = 0.0
    for batch in loader.held_out(steps_done=1, max_rows=50):
        arrays = (batch.tokens, batch.positions, batch.cu_seqlens, batch.masked_positions, batch.labels)
        found = encoder(*map(torch.from_numpy, arrays), seq_len=32)
        loss, predictions = loss + found.loss.item(), predictions + found.predictions.item()
    return loss / predictions
