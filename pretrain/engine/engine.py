"""The engine: a model, its optimizer and their distributed state, trained by DeepSpeed.

Only modules of pretrain.engine import DeepSpeed.
"""

import contextlib
import functools
import gc
from collections.abc import Iterable, Sequence
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS
from torch import Tensor

from data_prep.common.errors import UserError
from pretrain.checkpoint import Checkpoint, Parts
from pretrain.config import Config
from pretrain.data import DeviceBatch
from pretrain.engine.clipping import Clipping
from pretrain.engine.deepspeed_config import deepspeed_config, refusal, uses_flat_gradients
from pretrain.engine.deepspeed_state import all_finite, local_gradients, local_weights, replicated_weights
from pretrain.engine.device_time import ComputeTimer
from pretrain.engine.flat_step import FlatGradientStep
from pretrain.engine.gradient_buckets import matrix_groups
from pretrain.engine.gradient_check import GradientCheck, checked_parameters
from pretrain.engine.host_copy import StatesInMemory
from pretrain.engine.process_group import make_deterministic
from pretrain.engine.resharding import DEEPSPEED_FOLDER, exchange_weights, layout_of, load_resharded, local_pieces
from pretrain.engine.step_sums import LossSums
from pretrain.masking import IGNORED
from pretrain.model import Encoder, Prediction
from pretrain.optim import build_optimizer, optimizer_order
from pretrain.philox import derive_key, draw
from pretrain.run import PhaseMarker

_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")  # of DeepSpeed's engine


class Engine:
    """The model, its optimizer and their distributed state.

    Args:
        config: the run.
        model: the model, with the same initial weights on every rank.
        marker: receives the phase of the step.

    Attributes:
        deepspeed: DeepSpeed's engine, which holds parameters, gradients and optimizer state.
        n_parameters: the number of weights of the whole model.
        compute_timer: the time of the forward passes.
    """

    def __init__(self, config: Config, model: torch.nn.Module, marker: PhaseMarker | None = None):
        # On a CPU a compiled graph would add the gradients of an embedding's row in any order.
        if config.run.deterministic or (config.train.compile is True and get_accelerator().device_name() == "cpu"):
            make_deterministic()
        optimizer = build_optimizer(model, config.optim, matrix_groups(config))
        if type(optimizer) not in ZERO_SUPPORTED_OPTIMIZERS:  # it is, after a rollback
            ZERO_SUPPORTED_OPTIMIZERS.append(type(optimizer))
        self.config = config
        self._names = optimizer_order(model)
        self.n_parameters = sum(p.numel() for p in model.parameters())
        checked = checked_parameters(model, optimizer)
        settings = deepspeed_config(config, self.n_parameters, get_accelerator().device_name())
        try:
            self.deepspeed, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise refusal(error) from error
        optimizer.set_fragments(local_pieces(self.deepspeed))
        self.deepspeed.checkpoint_engine = self._states = StatesInMemory()
        self.deepspeed._copy_recovery_script = lambda folder: None  # `maskwright export` does what it is for
        self.device, self.marker = self.deepspeed.device, marker or PhaseMarker()
        self.compute_timer = ComputeTimer(self.device)
        self._flat: FlatGradientStep | None = None
        if uses_flat_gradients(config):
            self._flat = FlatGradientStep(self.deepspeed, config)
        self._clipping: Clipping | None = None
        if config.zero.stage == 2 and config.zero.offload == "none":
            self._clipping = Clipping(self.deepspeed.optimizer, config.train.precision == "fp16")
        self._check = GradientCheck(self.deepspeed, checked, flat=self._flat is not None)

    def total(self, counts: Sequence[float]) -> Tensor:
        """Sums over all ranks, fp64 [counts] on the device: exact below 2**53."""
        packed = torch.tensor(counts, dtype=torch.float64)
        if self.device.type == "cuda":  # from pinned memory, so that the host does not wait
            packed = packed.pin_memory().to(self.device, non_blocking=True)
        dist.all_reduce(packed)
        return packed

    @property
    def host_runs_ahead(self) -> bool:
        """Whether nothing in a step lets the host wait for a GPU, so that it starts kernels long before they run."""
        of_gpu = self.device.type == "cuda" and self.config.model.arch != "auto"
        zero, precision = self.config.zero, self.config.train.precision
        return of_gpu and zero.stage <= 1 and zero.offload == "none" and precision != "fp16"

    def step(
        self, batches: Sequence[DeviceBatch], weights: Tensor, lr: float, objectives: Sequence[float] = (1.0,)
    ) -> Tensor:
        """One optimizer step over the global batch.

        The loss is the mean of the cross-entropy over all predictions of the global batch, weighted if they have
        weights; of several objectives, the weighted sum of their means.

        DeepSpeed averages gradients over ranks, so each micro-batch's sum is scaled up by the number of ranks, but not
        where FlatGradients sums them.

        Args:
            batches: this rank's micro-batches, as many on every rank; their number and shapes may differ from the
                last step's.
            weights: of each objective, the sum of its predictions' weights in the global batch (their number, if all
                count the same): [objectives], on the device.
            lr: learning rate of this step.
            objectives: the weight of each objective's mean in the loss.

        Returns:
            fp64 [2 * objectives + 2] on the device: each objective's cross-entropy and correct predictions summed over
            all ranks, gradient norm before clipping, and whether the step was skipped: if the loss or a gradient of any
            rank is not finite, weights and optimizer state stay unchanged.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = lr
        return self._take_step(batches, weights.reshape(-1), objectives)

    def rehearse(self, batches: Sequence[DeviceBatch]) -> dict[str, float]:
        """Run a whole step without changing weights, optimizer state or counts.

        Returns:
            Relative differences of gradients from a plain all-reduce that are too large, by parameter; on every rank.
        """
        counts = {name: getattr(self.deepspeed, name) for name in _COUNTS}
        scaler = getattr(self.deepspeed.optimizer, "loss_scaler", None)  # fp16
        scale = dict(vars(scaler)) if scaler else {}
        n = len(self.config.objective_kinds)
        used = torch.stack([(batch.labels != IGNORED).sum() for batch in batches]).sum()
        weights = (used * dist.get_world_size() / n).double().expand(n)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self._take_step(batches, weights, (1 / n,) * n, rehearsal=True)
        self.compute_timer.take()
        self.marker.enter("start")
        for name, value in counts.items():
            setattr(self.deepspeed, name, value)
        if scaler:
            scaler.__dict__.update(scale)
        return self._check.differences

    def _take_step(
        self, batches: Sequence[DeviceBatch], weights: Tensor, objectives: Sequence[float], rehearsal: bool = False
    ) -> Tensor:
        """`step` without its learning rate. `rehearsal`: compare the gradients, and let the optimizer skip the step."""
        of_all = weights.sum().clamp(min=1)
        scale = (1 if self._flat else dist.get_world_size()) / of_all
        # The loss of an objective is divided by its own weights, not by all weights: factors near 1 suit 16 bits.
        factors = [weight * of_all / own.where(own > 0, 1) for weight, own in zip(objectives, weights, strict=True)]
        n = len(factors)
        sums = torch.zeros(2 * n + 1, dtype=torch.float64, device=self.device)
        with self._check if rehearsal else contextlib.nullcontext():
            for number, batch in enumerate(batches, start=1):
                # Before the forward pass: ZeRO decides by it when to reduce, and what to keep.
                self.deepspeed.set_gradient_accumulation_boundary(number == len(batches))
                self._seed(number)
                self.marker.enter("forward")
                with self.compute_timer.measure():
                    inputs = batch.inputs if n == 1 else batch.scaled(factors)
                    prediction: Prediction = self.deepspeed(**inputs)
                _add_by_objective(sums[:-1].view(2, n), batch, prediction.cross_entropy, prediction.correct)
                self.marker.enter("backward")
                self._backward(prediction.loss * scale.to(prediction.loss.dtype), last=number == len(batches))
            if rehearsal:
                self._check.compare()
        self.marker.enter("step")
        sums[-1] = self._squares()
        dist.all_reduce(sums)
        cross_entropy, correct, squares = sums.split([n, n, 1])
        skipped = ~sums.isfinite().all() | rehearsal
        norm = self._optimize(skipped.float(), squares[0]).to(self.device, torch.float64)
        if n > 1:
            scaled = torch.stack(factors)
            cross_entropy = cross_entropy / scaled.where(scaled != 0, 1)  # 0: without a share in this phase
        return torch.cat([cross_entropy, correct, norm.reshape(1), skipped.double().reshape(1)])

    def _squares(self) -> Tensor:
        """This rank's share of the gradients' sum of squares, [] on the device; not finite if a gradient is not.

        Zero for finite gradients that FlatGradients does not have: their norm is found while they are clipped.
        """
        if self._flat:
            return self._flat.gradients.squares()
        return all_finite(local_gradients(self.deepspeed), self.device).double().reciprocal() - 1  # 0 or infinity

    def _optimize(self, skipped: Tensor, squares: Tensor) -> Tensor:
        """Let the optimizer step. Where `skipped` (fp32 [] on the device) is 1, weights and state stay unchanged.

        `squares`: what all ranks' `_squares` add up to. Returns the gradient norm before clipping: [].

        An offloaded optimizer steps on the host, and PyTorch's own copy to there would be read before it has arrived.
        """
        self.deepspeed.basic_optimizer.found_inf = skipped if self.config.zero.offload == "none" else skipped.cpu()
        if self._flat:
            self._flat.norm = squares.sqrt().float()
        norm = self._clipping.measure() if self._clipping else self._plain_grad_norm()
        self.deepspeed.step()
        self._forget_overflow()
        return torch.as_tensor(self.deepspeed.get_global_grad_norm() if norm is None else norm)

    def weights_finite(self) -> bool:
        """Whether all weights of all ranks are finite; a collective that blocks the host."""
        self.wait_for_weights()
        spoiled = (~all_finite(local_weights(self.deepspeed), self.device)).float()
        dist.all_reduce(spoiled, dist.ReduceOp.MAX)
        return not spoiled.item()

    def replicas(self) -> dict[str, Tensor]:
        """The weights that should be equal on every rank, by name."""
        self.wait_for_weights()
        return replicated_weights(self.deepspeed)

    @property
    def module(self) -> torch.nn.Module:
        """The model, after `wait_for_weights`."""
        self.wait_for_weights()
        return self.deepspeed.module

    def set_rotary_bases(self, rope_theta: float, local_rope_theta: float) -> None:
        """From the next pass on, use these bases of the rotary frequencies; nothing happens without such positions."""
        if isinstance(self.module, Encoder) and self.module.shape.rotary:
            self.module.set_rotary_bases(rope_theta, local_rope_theta)

    def wait_for_weights(self) -> None:
        """Wait for the weights that other ranks have updated in the last step. A forward pass does so by itself."""
        if self._flat:
            self._flat.weights.wait()

    def evaluate(self, batches: Iterable[DeviceBatch], averaged: bool = False) -> LossSums:
        """Sums over all ranks' batches of one objective; each rank gives as many batches.

        `averaged`: with the averaged weights of optim.ema, after the first step; the others are then as before, bit
        for bit.
        """
        if averaged:
            self.wait_for_weights()
            exchange_weights(self.deepspeed)
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.deepspeed.eval()
        with torch.no_grad():
            for batch in batches:
                self.marker.enter("evaluation")
                prediction: Prediction = self.deepspeed(**batch.inputs)
                predictions = prediction.predictions
                weights = predictions if batch.weights is None else batch.weights.sum().reshape(predictions.shape)
                values = torch.stack([prediction.cross_entropy, prediction.correct, predictions, weights])
                sums += values.double().reshape(-1)
        self.deepspeed.train()
        if averaged:
            exchange_weights(self.deepspeed)
        dist.all_reduce(sums)
        return LossSums(*sums.tolist())

    def choices(self, batch: DeviceBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The `top` likeliest tokens of each prediction; a collective, the batch being the same on every rank.

        Returns:
            ids [K, top], their probabilities [K, top], and the probability of the right id [K].
        """
        self.deepspeed.eval()
        with torch.no_grad():
            self.marker.enter("evaluation")
            choices: tuple[Tensor, Tensor, Tensor] = self.deepspeed(**batch.inputs, top=top)
        self.deepspeed.train()
        return choices

    def snapshot(self, folder: Path, copy: bool) -> Parts:
        """The parts of weights and optimizer state that this rank writes; a collective.

        Args:
            folder: the folder of the checkpoint.
            copy: use a copy in host memory, so that training may continue. It is valid until the next snapshot.
        """
        self.wait_for_weights()
        self._states.restart(copy)
        self.deepspeed.save_checkpoint(str(folder), tag=DEEPSPEED_FOLDER, save_latest=False)
        states = self._states.take()
        return {
            str(Path(path).relative_to(folder)): functools.partial(torch.save, state) for path, state in states.items()
        }

    def load(self, start: Checkpoint) -> None:
        """Load a saved state of this or another layout; a collective, before the first step.

        The checkpoint must have been verified: loading unpickles it.

        Raises UserError on every rank, if its content cannot be used.
        """
        self.wait_for_weights()  # of a trial step
        if start.state["layout"] == layout_of(self.config):
            self._load_as_saved(start.path)
        else:
            load_resharded(self.deepspeed, start, self._names)

    def _load_as_saved(self, folder: Path) -> None:
        optimizer = self.deepspeed.optimizer
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        clip_grad = getattr(optimizer, "clip_grad", None)
        path, _ = self.deepspeed.load_checkpoint(str(folder), tag=DEEPSPEED_FOLDER)
        if path is None:
            raise UserError(f"{folder}: DeepSpeed finds no checkpoint there")
        # The configuration decides, not the checkpoint: a change of it was allowed.
        for group, configured in zip(optimizer.param_groups, groups, strict=True):
            group.update(configured)
        if clip_grad is not None:
            optimizer.clip_grad = clip_grad

    def close(self) -> None:
        """Leave the process group on all ranks together: launchers kill the others some time after one has left."""
        self.wait_for_weights()
        dist.barrier()
        self.deepspeed.destroy()
        dist.destroy_process_group()

    def release(self) -> None:
        """Free the model and its memory, but stay in the process group. The engine is unusable afterwards."""
        if self._flat:
            self._flat.close()
        self.deepspeed.destroy()
        # Each holds the optimizer, or copies of its state.
        del self.deepspeed, self._flat, self._clipping, self._check, self._states
        gc.collect()
        get_accelerator().empty_cache()

    def _backward(self, loss: Tensor, last: bool) -> None:
        """Add the gradients of a micro-batch; after the `last`, the gradients of all ranks are ready for the step."""
        if self._flat:
            self._flat.begin(last)
        self.deepspeed.backward(loss)
        if self._flat:
            self._flat.gradients.end()
            if last:
                self.marker.enter("reduction")
                self._flat.gradients.finish()

    def _forget_overflow(self) -> None:
        """Drop gradients that overflowed in fp16: offloaded ones DeepSpeed (0.19) keeps, and adds the next step's."""
        optimizer, config = self.deepspeed.optimizer, self.config
        if config.train.precision == "fp16" and config.zero.stage < 3 and optimizer.overflow:
            optimizer.averaged_gradients.update(dict.fromkeys(optimizer.averaged_gradients))

    def _seed(self, number: int) -> None:
        """Key what the model draws, as dropout does, by step, rank and micro-batch: a resumed run draws the same."""
        model = self.config.model
        if model.dropout or model.arch == "auto":
            key = derive_key(self.config.run.seed, "dropout")
            seed = draw(key, 1, self.deepspeed.global_steps, dist.get_rank(), number)[0]
            torch.manual_seed(int(seed) >> 1)

    def _plain_grad_norm(self) -> Tensor | None:
        """The gradient norm where DeepSpeed hands the step to the plain optimizer and computes none (stage 0, fp32)."""
        if hasattr(self.deepspeed.optimizer, "_global_grad_norm") or self.deepspeed.zero_optimization_stage() > 0:
            return None
        gradients = [p.grad for p in self.deepspeed.module.parameters() if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)


def _add_by_objective(sums: Tensor, batch: DeviceBatch, *values: Tensor) -> None:
    """Add values of a micro-batch, each [] or [groups], to sums [values, objectives]."""
    stacked = torch.stack(values).double().reshape(len(sums), -1)
    if not batch.groups:
        sums += stacked
    for number, group in enumerate(batch.groups):
        sums[:, group.objective] += stacked[:, number]
