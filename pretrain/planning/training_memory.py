"""Memory of a training process, from the formula: weights, gradients and optimizer state as ZeRO divides them.

These are what flat_gradients, pretrain.optim and DeepSpeed (0.19) hold: parameters of a kind lie in one flat tensor,
 filled up to a multiple of twice the number of processes (stages 1 and 2), or each is cut into equal parts
(stage 3). (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.config import Config
from pretrain.engine import bucket_size, uses_flat_gradients
from pretrain.model import Sizes
from pretrain.model.activation_memory import Activations

# Memory in GB (10**9 bytes) of the makers' data sheets. PyTorch can use a little more or less than that.
GPU_GB = {
    "A100-40GB": 40,
    "A100-80GB": 80,
    "H100": 80,
    "H100 PCIe": 80,
    "H200": 141,
    "GH200": 96,
    "B200": 180,
    "L40S": 48,
}
RESERVED = 2 << 30  # assumed: the CUDA context, NCCL's and cuBLAS's buffers, and what the allocator cannot use
_AHEAD = 4  # steps whose batches are on the device: in use, two that wait (pretrain.data.prefetch), one being made
_FP32 = 4
_PERSISTENT, _MAX_LIVE = 100_000, 1_000_000_000  # DeepSpeed's stage3_param_persistence_threshold, stage3_max_live_..


@dataclass(frozen=True)
class Item:
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


def peak(items: Sequence[Item]) -> int:
    """The most on the device at once: activations have gone when the optimizer steps."""
    of = {when: sum(item.device for item in items if item.when == when) for when in ("always", "pass", "step")}
    return of["always"] + max(of["pass"], of["step"])


def states(config: Config, sizes: Sizes, processes: int, device: str = "cuda") -> list[Item]:
    """Weights, gradients and optimizer state of one process, between and in its steps."""
    stage = config.zero.stage
    found = _whole(config, sizes) if stage == 0 else _parted(config, sizes, processes, device)
    if config.checkpoint.asynchronous:
        part = _part(config, sizes, processes)
        weights = part if stage == 3 else sizes.total
        copied = weights * element_size(config.train.precision) + part * _FP32 + _optimizer(config, sizes, processes)
        found.append(Item("copy of the state for asynchronous checkpoints", 0, copied))
    return found


def pass_items(of: Activations, sizes: Sizes, config: Config, data: int) -> list[Item]:
    """What the passes take beside the state; `data` are the bytes of a step's batches."""
    late = max(0, last_gradients(sizes, config) - of.peak)
    return [
        Item("activations", of.kept, when="pass"),
        Item("logits, or a layer's backward pass", max(of.head, of.layer), when="pass"),
        *([Item("gradients as the model has them, beyond that", late, when="pass")] if late else []),
        Item("batches", data * _AHEAD),
    ]


def last_gradients(sizes: Sizes, config: Config) -> int:
    """Bytes of gradients when a backward pass ends and activations have gone.

    That of the vocabulary matrix is there three times: from the loss, from the embedding, and their sum. The others are
    there where they are not handed on at once; at stage 0 they are counted as gradients already.
    """
    tables = max(sizes.by_kind.get("embedding", (0,)))
    whole = sizes.total if uses_flat_gradients(config) else tables if config.zero.stage else 0
    return (whole + 2 * tables) * element_size(config.train.precision)


def batch_bytes(slots: int, predictions: int, documents: int) -> int:
    """Bytes of a micro-batch (pretrain.data.batch): int64, but for the boundaries of `documents` at most, int32."""
    return 16 * (slots + predictions) + 4 * (documents + 1)


def _whole(config: Config, sizes: Sizes) -> list[Item]:
    """Stage 0, in fp32: everything on each process."""
    return [
        Item("weights", sizes.total * _FP32),
        Item("gradients", sizes.total * _FP32),
        Item("optimizer state", _optimizer(config, sizes, 1)),
        Item("optimizer's working memory", _working(config, sizes, 1), when="step"),
    ]


def _parted(config: Config, sizes: Sizes, processes: int, device: str) -> list[Item]:
    stage, b = config.zero.stage, element_size(config.train.precision)
    part, offloads = _part(config, sizes, processes), config.zero.offload != "none"
    names = "fp32 weights", "optimizer state"
    amounts = part * _FP32, _optimizer(config, sizes, processes)
    found = _weights(config, sizes, part)
    found += [
        Item(name, 0, amount) if offloads else Item(name, amount) for name, amount in zip(names, amounts, strict=True)
    ]
    found += _gradients(config, sizes, part, device, processes)
    if stage < 3 and offloads:
        found.append(Item("buffers of offloading", sizes.largest * b, (part + sizes.largest) * b))
    working = _working(config, sizes, processes)
    found.append(Item("optimizer's working memory", 0 if offloads else working, working if offloads else 0, "step"))
    return found


def _weights(config: Config, sizes: Sizes, part: int) -> list[Item]:
    b = element_size(config.train.precision)
    if config.zero.stage < 3:
        return [Item("weights", _padded(sizes, 1) * b)]
    threshold = _raw(config, "param_persistence_threshold", _PERSISTENT)
    whole = sum(n for _, numels in sizes.groups for n in numels if n <= threshold)
    gathered = min(sizes.total - whole, _raw(config, "max_live_parameters", _MAX_LIVE))
    weights = Item("weights", 0, part * b) if config.zero.offload_parameters else Item("weights", part * b)
    return [
        weights,
        Item("small weights, whole", whole * b),
        Item("weights gathered for a pass, at most", gathered * b, when="pass"),
    ]


def _gradients(config: Config, sizes: Sizes, part: int, device: str, processes: int) -> list[Item]:
    if uses_flat_gradients(config):
        whole = _padded(sizes, processes) * _FP32
        sums = 0 if processes == 1 else part * _FP32 + (whole if device == "cpu" else 0)
        return [Item("gradients", whole + sums)]
    stage, offloads = config.zero.stage, config.zero.offload != "none"
    bucket = _raw(config, "reduce_bucket_size", bucket_size(sizes.total, device)) * _FP32
    buckets = 2 if stage < 3 and _raw(config, "overlap_comm", device == "cuda") else 1
    name = "buckets of gradients"
    if stage == 3:
        held = Item("gradients", 0, 2 * part * _FP32) if offloads else Item("gradients", part * _FP32)
        return [held, Item(name, bucket * buckets)]
    held = Item("gradients", 0, part * _FP32) if offloads else Item("gradients", part * _FP32, when="pass")
    again = [] if offloads else [Item("gradients, for the step", part * _FP32, when="step")]
    return [held, *again, Item(name, bucket * buckets, when="pass")]


def _working(config: Config, sizes: Sizes, processes: int) -> int:
    """What a step of the optimizer makes of one group at a time, at most: its directions, and whole matrices."""
    copies = {"adamw": 0, "lamb": 1, "stable_adamw": 2, "muon": 3}[config.optim.name]
    if config.zero.stage == 3:
        copies += 1  # DeepSpeed puts the group's gradients into one tensor
    return copies * max(_part_of(config, numels, processes) for _, numels in sizes.groups) * _FP32


def _optimizer(config: Config, sizes: Sizes, processes: int) -> int:
    """Bytes of the optimizer's state, with a step count for each tensor that has one."""
    return sum(
        _state(config, kind) * _part_of(config, numels, processes) * _FP32
        + _FP32 * _counts(config, kind) * (1 if config.zero.stage else len(numels))
        for kind, numels in sizes.groups
    )


def _state(config: Config, kind: str) -> int:
    """Tensors like the weights in the optimizer's state."""
    return (2 if _counts(config, kind) else 1) + (config.optim.ema is not None)


def _counts(config: Config, kind: str) -> bool:
    return config.optim.name != "muon" or kind != "matrix"


def _part(config: Config, sizes: Sizes, processes: int) -> int:
    """Elements of the weights that one process answers for, with what fills them up."""
    return sum(_part_of(config, numels, processes) for _, numels in sizes.groups)


def _part_of(config: Config, numels: Sequence[int], processes: int) -> int:
    if config.zero.stage == 0:
        return sum(numels)
    if config.zero.stage == 3:
        return sum(-(-numel // processes) for numel in numels)
    return 2 * -(-sum(numels) // (2 * processes))


def _padded(sizes: Sizes, processes: int) -> int:
    return sum(2 * processes * -(-sum(numels) // (2 * processes)) for _, numels in sizes.groups)


def _raw(config: Config, name: str, ours: int) -> int:
    """A raw key of `deepspeed: {zero_optimization: ...}`, under either of its names, if it is there."""
    given: Any = config.deepspeed.get("zero_optimization")
    if not isinstance(given, dict):
        return ours
    found: Any = given.get(name, given.get(f"stage3_{name}", ours))
    return int(found)
