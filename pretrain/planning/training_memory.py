"""Compute the memory of a training process: weights, gradients and optimizer state as ZeRO partitions them.

The formulas follow flat_gradients, pretrain.optim and DeepSpeed 0.19. In stages 1 and 2, each
parameter group is one flat tensor, padded to a multiple of twice the number of processes. In stage 3, each parameter is
cut into equal parts.
(Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.engine import bucket_size, matrix_groups, uses_flat_gradients
from pretrain.model import Activations, Sizes
from pretrain.optim import depth_slices
from pretrain.planning.collectives import GPUS

_AHEAD = 4  # batches on the device: one in use, two waiting (pretrain.data.feed), one being prepared
_FP32 = 4
_PERSISTENT, _MAX_LIVE = 100_000, 1_000_000_000  # DeepSpeed's stage3_param_persistence_threshold, stage3_max_live_..


@dataclass(frozen=True)
class GpuMemory:
    """The memory of a GPU in bytes.

    reserved: assumed for the CUDA context, buffers of NCCL and cuBLAS, and fragmentation of the allocator.
    """

    description: str
    total: int
    reserved: int = 2 << 30

    @property
    def usable(self) -> int:
        """Bytes that a run can use."""
        return self.total - self.reserved

    @classmethod
    def of(cls, name: str | None, gigabytes: float | None) -> "GpuMemory | None":
        """The memory of a GPU model, or of any GPU with these 10**9 bytes; None without both.

        Raises UserError if the GPU model is not known.
        """
        if name is not None and gigabytes is None and name not in GPUS:
            meant = next((f"Did you mean {known}? " for known in GPUS if known.lower() == name.lower()), "")
            names = ", ".join(GPUS)
            raise UserError(f"--gpu {name!r} is not known. {meant}You can write one of {names}, or give --gpu-memory.")
        size = gigabytes or (GPUS[name].gigabytes if name else None)
        return cls(f"{name or 'a GPU'} of {size:g} GB", round(size * 1e9)) if size else None


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, on its device and in the host's memory.

    when: "always", in the "pass" (forward and backward), or in the optimizer's "step" after it.
    """

    name: str
    device: int
    host: int = 0
    when: str = "always"


def element_size(precision: str) -> int:
    """Bytes of a weight or an activation: bf16, fp16 or fp32."""
    return 4 if precision == "fp32" else 2


def peak_bytes(items: Sequence[Memory]) -> int:
    """Peak bytes on the device. Activations are freed before the optimizer's step."""
    of = {when: sum(item.device for item in items if item.when == when) for when in ("always", "pass", "step")}
    return of["always"] + max(of["pass"], of["step"])


def states(config: Config, sizes: Sizes, processes: int, device: str = "cuda") -> list[Memory]:
    """Weights, gradients and optimizer state of one process, between and during its steps."""
    stage = config.zero.stage
    items = _whole(config, sizes) if stage == 0 else _parted(config, sizes, processes, device)
    if config.checkpoint.asynchronous:
        part = _part(config, sizes, processes)
        weights = part if stage == 3 else sizes.total
        copied = (
            weights * element_size(config.train.precision) + part * _FP32 + optimizer_state(config, sizes, processes)
        )
        items.append(Memory("copy of the state for asynchronous checkpoints", 0, copied))
    return items


def pass_items(of: Activations, sizes: Sizes, config: Config, data: int) -> list[Memory]:
    """Memory of the passes in addition to the state. data: bytes of a step's batches."""
    late = max(0, last_gradients(sizes, config) - of.peak)
    return [
        Memory("activations", of.kept, when="pass"),
        Memory("logits, or a layer's backward pass", max(of.head, of.layer), when="pass"),
        *([Memory("gradients as the model has them, beyond that", late, when="pass")] if late else []),
        Memory("batches", data * _AHEAD),
    ]


def last_gradients(sizes: Sizes, config: Config) -> int:
    """Bytes of gradients at the end of a backward pass, when activations are freed.

    The gradient of a tied vocabulary matrix exists three times: from the loss, from the embedding, and their sum. The
    others count only if they are kept until the end of the pass; at stage 0 they already count as gradients.
    """
    tables = max(sizes.by_kind.get("embedding", (0,)))
    whole = sizes.total if uses_flat_gradients(config) else tables if config.zero.stage else 0
    return (whole + 2 * tables * sizes.tied) * element_size(config.train.precision)


def _whole(config: Config, sizes: Sizes) -> list[Memory]:
    """Stage 0, in fp32: each process holds everything."""
    return [
        Memory("weights", sizes.total * _FP32),
        Memory("gradients", sizes.total * _FP32),
        Memory("optimizer state", optimizer_state(config, sizes, 1)),
        Memory("optimizer's working memory", _working(config, sizes, 1), when="step"),
    ]


def _parted(config: Config, sizes: Sizes, processes: int, device: str) -> list[Memory]:
    stage, b = config.zero.stage, element_size(config.train.precision)
    part, offloads = _part(config, sizes, processes), config.zero.offload != "none"
    names = "fp32 weights", "optimizer state"
    amounts = part * _FP32, optimizer_state(config, sizes, processes)
    items = _weights(config, sizes, part)
    items += [
        Memory(name, 0, amount) if offloads else Memory(name, amount)
        for name, amount in zip(names, amounts, strict=True)
    ]
    items += _gradients(config, sizes, part, device, processes)
    if stage < 3 and offloads:
        items.append(Memory("buffers of offloading", sizes.largest * b, (part + sizes.largest) * b))
    working = _working(config, sizes, processes)
    items.append(Memory("optimizer's working memory", 0 if offloads else working, working if offloads else 0, "step"))
    return items


def _weights(config: Config, sizes: Sizes, part: int) -> list[Memory]:
    b = element_size(config.train.precision)
    if config.zero.stage < 3:
        return [Memory("weights", _padded(config, sizes, 1) * b)]
    threshold = _raw(config, "param_persistence_threshold", _PERSISTENT)
    whole = sum(n for _, numels in sizes.groups for n in numels if n <= threshold)
    gathered = min(sizes.total - whole, _raw(config, "max_live_parameters", _MAX_LIVE))
    return [
        Memory("weights", part * b),
        Memory("small weights, whole", whole * b),
        Memory("weights gathered for a pass, at most", gathered * b, when="pass"),
    ]


def _gradients(config: Config, sizes: Sizes, part: int, device: str, processes: int) -> list[Memory]:
    if uses_flat_gradients(config):
        whole = _padded(config, sizes, processes) * _FP32  # at most: AdamW's kernel may read 16 bits
        sums = 0 if processes == 1 else part * _FP32 + (whole if device == "cpu" else 0)
        return [Memory("gradients", whole + sums)]
    stage, offloads = config.zero.stage, config.zero.offload != "none"
    bucket = _raw(config, "reduce_bucket_size", bucket_size(sizes.total, device)) * _FP32
    buckets = 2 if stage < 3 and _raw(config, "overlap_comm", device == "cuda") else 1
    name = "buckets of gradients"
    if stage == 3:
        held = Memory("gradients", 0, 2 * part * _FP32) if offloads else Memory("gradients", part * _FP32)
        return [held, Memory(name, bucket * buckets)]
    held = Memory("gradients", 0, part * _FP32) if offloads else Memory("gradients", part * _FP32, when="pass")
    again = [] if offloads else [Memory("gradients, for the step", part * _FP32, when="step")]
    return [held, *again, Memory(name, bucket * buckets, when="pass")]


def _working(config: Config, sizes: Sizes, processes: int) -> int:
    """Peak bytes of temporary tensors in the optimizer's step, which updates one kind at a time."""
    copies = {"adamw": 0, "lamb": 1, "stable_adamw": 2, "muon": 3}[config.optim.name]
    if config.zero.stage == 3:
        copies += 1  # DeepSpeed puts the group's gradients into one tensor
    return copies * max(_part_of(config, numels, processes) for _, numels in sizes.groups) * _FP32


def optimizer_state(config: Config, sizes: Sizes, processes: int) -> int:
    """Bytes of the optimizer's state on one process, including the step counts."""
    return sum(
        _state(config, kind) * _part_of(config, numels, processes) * _FP32
        + _FP32 * _counts(config, kind) * (1 if config.zero.stage else len(numels))
        for kind, numels in groups(sizes, matrix_groups(config))
    )


def _state(config: Config, kind: str) -> int:
    """Number of tensors in the optimizer's state that have the shape of the weights."""
    return (2 if _counts(config, kind) else 1) + (config.optim.ema is not None)


def _counts(config: Config, kind: str) -> bool:
    return config.optim.name != "muon" or kind != "matrix"


def _part(config: Config, sizes: Sizes, processes: int) -> int:
    """Elements of the weights in the partition of one process, padding included."""
    return sum(_part_of(config, numels, processes) for _, numels in groups(sizes, matrix_groups(config)))


def groups(sizes: Sizes, depths: int) -> list[tuple[str, Sequence[int]]]:
    """Kind and elements of the parameters of each group of the optimizer. depths: of groups that matrices make."""
    return [
        (kind, numels[part])
        for kind, numels in sizes.groups
        for part in (depth_slices(sizes.layers, depths) if kind == "matrix" else [slice(None)])
    ]


def _part_of(config: Config, numels: Sequence[int], processes: int) -> int:
    if config.zero.stage == 0:
        return sum(numels)
    if config.zero.stage == 3:
        return sum(-(-numel // processes) for numel in numels)
    return 2 * -(-sum(numels) // (2 * processes))


def _padded(config: Config, sizes: Sizes, processes: int) -> int:
    parts = groups(sizes, matrix_groups(config))
    return sum(2 * processes * -(-sum(numels) // (2 * processes)) for _, numels in parts)


def _raw(config: Config, name: str, ours: int) -> int:
    """A value in `deepspeed: {zero_optimization: ...}`, under either name of the key; `ours` if it is not set."""
    given: Any = config.deepspeed.get("zero_optimization")
    if not isinstance(given, dict):
        return ours
    value: Any = given.get(name, given.get(f"stage3_{name}", ours))
    return int(value)
