"""Steps ahead of the loop: a thread builds the batches, copies them to the device, and adds up what they hold."""

from dataclasses import dataclass

import numpy as np

from pretrain.data import DeviceBatch, DeviceFeed, Loader, LoaderStep, Prefetcher
from pretrain.engine import StepSums
from pretrain.loop.step_metrics import FlopsCounter
from pretrain.resuming import ResumeState


@dataclass(frozen=True)
class LoadedStep:
    """A step with its batches on their way to the device, and this rank's sums over them."""

    step: LoaderStep
    batches: list[DeviceBatch]
    sums: StepSums


def prefetch(
    loader: Loader, start: ResumeState, feed: DeviceFeed, flops: FlopsCounter, objectives: int
) -> Prefetcher[LoadedStep]:
    """The steps from `start` on, for a model with so many objectives."""

    def prepare(step: LoaderStep) -> LoadedStep:
        sums = [(b.n_tokens, b.n_replaced, b.checksum(), flops.of_batch(b)) for b in step.batches]
        totals = np.sum([batch.totals(objectives) for batch in step.batches], axis=0).tolist()
        predictions, weights = map(tuple, totals)
        batches = [feed(batch) for batch in step.batches]
        of_batch = map(sum, zip(*sums, strict=True))
        return LoadedStep(step, batches, StepSums(*of_batch, predictions=predictions, weights=weights))

    return Prefetcher(loader, start.steps_done, start.position, prepare)
