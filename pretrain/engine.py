"""DeepSpeed behind a small surface: one optimizer step over a global batch. The only importer of deepspeed."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from data_prep.errors import UserError
from pretrain.agree import together
from pretrain.checkpoint import Checkpoint
from pretrain.config import Config
from pretrain.data.feed import DeviceBatch
from pretrain.layout import gather, layout_of, live_pieces, take_over
from pretrain.model.build import Model
from pretrain.model.prediction import Prediction
from pretrain.optim import build_optimizer
from pretrain.philox import derive_key, draw
from pretrain.shared_memory import unlink_segments

_TAG = "deepspeed"
_OURS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "managed_gradient_accumulation",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "bf16",
    "fp16",
)


def init_distributed() -> None:
    """Join the process group that the launcher's environment describes (gloo on CPU, NCCL on GPU)."""
    # DeepSpeed builds a small extension with ninja: always that of this environment, or it builds anew.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":  # collectives before the engine exists need it
        accelerator.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    deepspeed.init_distributed(dist_backend=accelerator.communication_backend_name(), verbose=False)
    dist.barrier()  # every rank has mapped every other's segment
    unlink_segments(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], dist.get_rank())


def deepspeed_config(config: Config) -> dict[str, Any]:
    """The DeepSpeed configuration of a run.

    The two batch sizes only satisfy DeepSpeed's checks: the engine tells it at each micro-batch whether a step ends
    there, so their number and shape may vary from step to step.

    Raises:
        UserError: if `deepspeed:` sets a key that Maskwright derives from its own sections.
    """
    for key in _OURS:
        if key in config.deepspeed:
            raise UserError(f"deepspeed.{key} is derived from train: and optim:; remove it and set those instead")
    if "stage" in config.deepspeed.get("zero_optimization", {}):
        raise UserError("deepspeed.zero_optimization.stage is derived from zero:; remove it and set zero.stage instead")
    ours: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.grad_clip,
        "bf16": {"enabled": config.train.precision == "bf16"},
        "zero_optimization": {
            "stage": config.zero.stage,
            "contiguous_gradients": True,
            "overlap_comm": get_accelerator().device_name() == "cuda",
            "reduce_bucket_size": 500_000_000,
            "allgather_bucket_size": 500_000_000,
        },
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
    }
    return _merged(ours, config.deepspeed)


class Engine:
    """The model, its optimizer and their distributed state.

    Args:
        config: the run.
        model: initialised alike on every rank.
    """

    def __init__(self, config: Config, model: Model):
        optimizer = build_optimizer(model, config.optim)
        names = {parameter: name for name, parameter in model.named_parameters()}
        self._config = config
        self._names = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=deepspeed_config(config))
        self.device = self._engine.device

    def total(self, counts: Sequence[float], on_device: Tensor | None = None) -> Tensor:
        """Sums over all ranks, fp64 [counts] on the device: exact below 2**53.

        `on_device` is added to this rank's counts: fp64 [counts], of which the host does not know.
        """
        sums = torch.tensor(counts, dtype=torch.float64)
        if self.device.type == "cuda":  # from pinned memory, so that the host does not wait
            sums = sums.pin_memory().to(self.device, non_blocking=True)
        if on_device is not None:
            sums += on_device
        dist.all_reduce(sums)
        return sums

    def step(self, batches: Sequence[DeviceBatch], predictions: Tensor, lr: float) -> Tensor:
        """One optimizer step over the global batch.

        The loss is the sum of cross-entropies over all predictions of the global batch divided by their number.
        DeepSpeed averages gradients over ranks, so each micro-batch's sum is scaled up by the number of ranks.

        Args:
            batches: this rank's micro-batches, as many on every rank; their number and shapes may differ from the
                last step's.
            predictions: those of the global batch, on the device.
            lr: learning rate of this step.

        Returns:
            fp64 [3] on the device: cross-entropy and correct predictions summed over all ranks, gradient norm before
            clipping.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        scale = dist.get_world_size() / predictions.clamp(min=1)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches, start=1):
            # Before the forward pass: ZeRO decides by it when to reduce, and what to keep.
            self._engine.set_gradient_accumulation_boundary(number == len(batches))
            self._seed(number)
            prediction = self._forward(batch)
            sums += torch.stack([prediction.cross_entropy, prediction.correct]).double()
            self._engine.backward(prediction.loss * scale.to(prediction.loss.dtype))
        norm = self._plain_grad_norm()
        self._engine.step()
        dist.all_reduce(sums)
        if norm is None:
            norm = self._engine.get_global_grad_norm()
        norm = torch.as_tensor(norm, dtype=torch.float64, device=self.device)
        return torch.cat([sums, norm.reshape(1)])

    def evaluate(self, batches: Iterable[DeviceBatch]) -> Tensor:
        """Sums over all ranks' batches, each rank giving as many: fp64 [3] cross-entropy, correct, predictions."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self._engine.eval()
        with torch.no_grad():
            for batch in batches:
                prediction = self._forward(batch)
                sums += torch.stack([prediction.cross_entropy, prediction.correct, prediction.predictions]).double()
        self._engine.train()
        dist.all_reduce(sums)
        return sums

    def save(self, folder: Path) -> None:
        """Write this rank's part of the weights and optimizer state below `folder`; a collective."""
        self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)

    def load(self, start: Checkpoint) -> None:
        """Take up what `save` wrote, under this or another layout; a collective, before the first step.

        The checkpoint must have been verified: loading unpickles it.

        Raises:
            UserError: on every rank, if its content cannot be used.
        """
        if start.state["layout"] == layout_of(self._config):
            self._load_as_saved(start.path)
            return
        wanted = [(tensor.numel(), pieces) for tensor, pieces in live_pieces(self._engine)]
        folder, layout = start.path / _TAG, start.state["layout"]
        take_over(self._engine, together(lambda: gather(folder, layout, self._names, wanted)))
        self._engine.global_steps = start.step

    def _load_as_saved(self, folder: Path) -> None:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self._engine.optimizer.param_groups]
        path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG)
        if path is None:
            raise UserError(f"{folder}: DeepSpeed finds no checkpoint there")
        for group, configured in zip(self._engine.optimizer.param_groups, groups, strict=True):
            group.update(configured)  # the configuration decides, not the checkpoint: a change of it was allowed

    def close(self) -> None:
        """Leave the process group together: launchers kill the ranks that are left when one has gone for a while."""
        dist.barrier()
        self._engine.destroy()
        dist.destroy_process_group()

    def _forward(self, batch: DeviceBatch) -> Prediction:
        return self._engine(
            batch.tokens,
            batch.positions,
            batch.cu_seqlens,
            batch.masked_positions,
            batch.labels,
            seq_len=batch.seq_len,
            n_documents=batch.n_documents,
        )

    def _seed(self, number: int) -> None:
        """Key what the model draws, as dropout does, by step, rank and micro-batch: a resumed run draws the same."""
        model = self._config.model
        if model.dropout or model.arch == "auto":
            key = derive_key(self._config.run.seed, "dropout")
            seed = draw(key, 1, self._engine.global_steps, dist.get_rank(), number)[0]
            torch.manual_seed(int(seed) >> 1)

    def _plain_grad_norm(self) -> Tensor | None:
        """The gradient norm where DeepSpeed hands the step to the plain optimizer and computes none (stage 0, fp32)."""
        if hasattr(self._engine.optimizer, "_global_grad_norm") or self._engine.zero_optimization_stage() > 0:
            return None
        gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for key, value in theirs.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
