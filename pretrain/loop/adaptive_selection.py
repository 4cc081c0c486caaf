"""Adaptive selection: tokens that the model predicts badly are masked more often.

Source: Edman and Fraser, "Mask and you shall receive: optimizing masked language modeling for pretraining BabyLMs",
2025, arXiv:2510.20475, with their "hard" measure and constants.

Steps are divided into windows of `masking.selection.adapt_steps`. The predictions of one window decide the weights of
ids in the second window after it: batches of the next window are prepared before the window ends. So the masks of a
step do not depend on how far batches are prepared ahead.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from data_prep.files import atomic_writer
from pretrain.checkpoint import Parts
from pretrain.data import DeviceBatch
from pretrain.guards import ResumeState
from pretrain.masking import IGNORED
from pretrain.resume import RunParts

_FILE = "adaptive_selection.npy"  # of a checkpoint: factors of its window and of the next, right and all predictions
_KEPT = 0.2  # share of the old factors in the new ones
_LEAST = 1 / 30  # smallest factor: 0.005 of a mask rate of 0.15


def adapted(
    factors: NDArray[np.float64], right: NDArray[np.float64], predicted: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The next factors [size] on the weights of ids: mean 1, the higher the less often predictions were right.

    factors: the last ones. right, predicted: of each id, right predictions and all predictions.
    """
    wrong = 1 - (right + 0.5) / (predicted + 1)
    raised = np.maximum(_KEPT * factors + (1 - _KEPT) * wrong, _LEAST)
    return raised / raised.mean()


class AdaptiveSelection:
    """The factors on the weights of ids by window of steps, and what the model predicts right in this window.

    Args:
        run: the run. start: where it continues. size: ids of the vocabulary. device: of the training.
    """

    def __init__(self, run: RunParts, start: ResumeState, size: int, device: torch.device):
        self._folder, self._is_main, self._recorded = run.folder, run.rank == 0, set[int]()
        self._every = run.config.masking.selection.adapt_steps
        self._drawn = [kind.draws_masks for kind in run.config.objective_kinds]
        saved = start.checkpoint and start.checkpoint / _FILE
        if saved and saved.exists():
            now, following, *counts = np.load(saved, allow_pickle=False)
        else:
            now, following, counts = np.ones(size), np.ones(size), list(np.zeros((2, size)))
        window = start.steps_done // self._every
        self._factors = {window: now, window + 1: following}
        self._counts = torch.tensor(np.stack(counts), device=device) * self._is_main  # the ranks' counts are added up

    def factors_at(self, steps_done: int) -> NDArray[np.float32]:
        """The factors [size] for the step after `steps_done` steps."""
        return self._factors[steps_done // self._every].astype(np.float32)

    def observe(self, batch: DeviceBatch, right: Tensor) -> None:
        """Count a micro-batch; right [K]: 1 for each prediction that is right."""
        for part in self._masked_parts(batch):
            labels = batch.labels[part]
            used = labels != IGNORED
            self._counts.index_add_(1, labels.clamp(min=0), torch.stack([right[part] * used, used]).double())

    def _masked_parts(self, batch: DeviceBatch) -> Iterator[slice]:
        """The predictions of objectives that draw masks."""
        first = 0
        for group in batch.groups:
            if self._drawn[group.objective]:
                yield slice(first, first + group.places)
            first += group.places
        if not batch.groups:
            yield slice(None)

    def after_step(self, steps_done: int) -> None:
        """At the end of a window, make the factors of the second window after it; a collective."""
        if steps_done % self._every == 0:
            window = steps_done // self._every
            dist.all_reduce(self._counts)
            now = self._factors[window]
            self._factors = {window: now, window + 1: adapted(now, *self._counts.cpu().numpy())}
            self._counts.zero_()

    def record(self) -> None:
        """Write the factors that are not in the run folder yet, on rank 0; raises OSError."""
        for window, factors in self._factors.items():
            if self._is_main and window not in self._recorded:
                self._folder.mask_factors.mkdir(exist_ok=True)
                with atomic_writer(self._folder.mask_factors_from(window * self._every)) as file:
                    np.save(file, factors.astype(np.float32))
                self._recorded.add(window)

    def snapshot(self) -> Parts:
        """The part of a checkpoint that rank 0 writes; a collective."""
        counts = self._counts.clone()
        dist.all_reduce(counts)
        state = np.stack([*self._factors.values(), *counts.cpu().numpy()])
        return {_FILE: lambda file: np.save(file, state)} if self._is_main else {}
