"""Metrics of a training step, for journal and progress line."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from pretrain.config import Config, View
from pretrain.data import Batch, MixturePosition
from pretrain.engine import Instant, LossSums, StepOutput, StepSums
from pretrain.model import EncoderCosts, peak_tflops
from pretrain.objectives import loss_weights
from pretrain.setup import RunParts


@dataclass(frozen=True)
class StepInfo:
    """The values of a step that the host knows before the step's sums arrive from the device.

    before: the position of its batch in the stream. rows, seq_len: the shape of the batch.
    mask_rate, shares: see LoaderStep.
    phase: the number of the phase. settings: digest of the settings that decide the batch.
    times: when it began and ended on the device. waited: seconds that this rank waited for data.
    host_behind: see StepResult.
    """

    step: int
    lr: float
    before: MixturePosition
    rows: int
    seq_len: int
    mask_rate: float
    shares: tuple[float, ...]
    phase: int
    settings: str
    times: tuple[Instant, Instant]
    waited: float
    host_behind: bool

    @cached_property
    def seconds(self) -> float:
        """The duration of the step, after its sums have arrived from the device."""
        began, ended = self.times
        return ended.seconds_since(began)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and sequence length of the batch."""
        return self.rows, self.seq_len

    def batch(self, sums: StepSums) -> dict[str, Any]:
        """The journal's record of the batch, for `replay`."""
        return {
            "position": asdict(self.before),
            "seq_len": self.seq_len,
            "rows": self.rows,
            "mask_rate": self.mask_rate,
            **({"shares": self.shares} if self.shares else {}),
            "checksum": int(sums.checksum),
            "replaced": int(sums.replaced),
            "settings": self.settings,
        }


def objective_metrics(
    stage: Literal["train", "eval"], config: Config, step: int, shares: Sequence[float], sums: Sequence[LossSums]
) -> dict[str, float]:
    """Loss and accuracy of all objectives and, if there are several, of each that has predictions.

    The loss of all is the weighted sum of their losses; for the accuracy, all predictions count the same.

    Args:
        step: 0 for the first step. shares: of the objectives at this step, or empty for one.
        sums: of each objective.
    """
    losses = [of_one.cross_entropy / (of_one.weights or 1) for of_one in sums]
    correct, predictions = sum(of_one.correct for of_one in sums), sum(of_one.predictions for of_one in sums)
    if stage == "eval" and not predictions:  # 0 would be the best of all losses
        return dict.fromkeys(("eval/loss", "eval/masked_accuracy"), float("nan"))
    weighted = sum(weight * loss for weight, loss in zip(loss_weights(config, step, shares), losses, strict=True))
    metrics = {f"{stage}/loss": weighted, f"{stage}/masked_accuracy": correct / max(predictions, 1)}
    for kind, loss, of_one in zip(config.objective_kinds, losses, sums, strict=True):
        if shares and of_one.predictions:
            accuracy = of_one.correct / of_one.predictions
            metrics |= {f"{stage}/loss/{kind.name}": loss, f"{stage}/masked_accuracy/{kind.name}": accuracy}
    return metrics


@dataclass(frozen=True)
class FlopsCounter:
    """Counts the floating-point operations of a model.

    count: operations of a micro-batch, from the lengths of its documents and the number of its predictions; None if
        not known (`arch: auto`).
    pad: id of the padding token.
    peak: peak TFLOP/s of a device; None if not known.
    """

    count: Callable[..., float] | None
    pad: int
    peak: int | None

    @classmethod
    def of(cls, run: RunParts, device: torch.device) -> "FlopsCounter":
        """The counter for the model of a run."""
        peak = peak_tflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        costs = EncoderCosts.of(run.description)
        return cls(costs.step_flops if costs else None, run.data.tokenizer.special_ids["pad"], peak)

    def of_batch(self, batch: Batch) -> float:
        """Operations of a micro-batch, without its predictions."""
        if self.count is None:
            return 0.0
        if not batch.groups:
            return self.count(batch.document_lengths(self.pad), 0)
        views = {group.view for group in batch.groups}
        return sum(self.count(batch.document_lengths(self.pad, view), 0, view is View.CAUSAL) for view in views)

    def metrics(self, flops: float, predictions: float, seconds: float, devices: int) -> dict[str, float]:
        """TFLOP/s of each device, and the model FLOPs utilization: their share of the peak."""
        if self.count is None:
            return {}
        flops += self.count(np.zeros(0, np.int64), int(predictions))
        tflops = flops / seconds / devices / 1e12
        return {"speed/tflops": tflops} | ({"speed/mfu": tflops / self.peak} if self.peak else {})


def step_metrics(info: StepInfo, output: StepOutput, config: Config) -> dict[str, float]:
    """The metrics of a step."""
    return objective_metrics("train", config, info.step - 1, info.shares, output.losses) | {
        "train/learning_rate": info.lr,
        "train/mask_rate": info.mask_rate,
        "train/grad_norm": output.grad_norm,
        "data/seq_len": info.seq_len,
        "speed/tokens_per_second": output.sums.tokens / info.seconds,
        "speed/data_wait": info.waited / info.seconds,
        "speed/step_seconds": info.seconds,
    }
