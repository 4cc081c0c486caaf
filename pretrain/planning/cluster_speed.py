"""The scaling table: the options of a user, and the predicted step of a config on clusters of several sizes."""

import math
from dataclasses import dataclass

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.engine import MATRIX_GROUPS, group_buckets
from pretrain.model import Sizes
from pretrain.planning.collectives import GPUS, NETWORKS, Cluster
from pretrain.planning.run_plan import Planner
from pretrain.planning.scaling import Communication, Compute, StepTime, Transfer, step_time
from pretrain.planning.speed import Rate
from pretrain.planning.training_memory import element_size, groups, optimizer_state

_FP32 = 4
_LAUNCHES = 1e-4  # seconds to start the kernels of an optimizer step; assumed


@dataclass(frozen=True)
class Scheme:
    """How gradients and weights are sent.

    Attributes:
        all_reduce: gradients reach all ranks, which sends twice as much as a reduce-scatter.
        gathers: updated weights are gathered.
        matrix_groups: groups of the matrices, which are sent one after the other.
        reduce_bytes: of a gradient when it is sent.
    """

    name: str
    all_reduce: bool
    gathers: bool
    overlap_reduce: bool
    overlap_gather: bool
    matrix_groups: int
    reduce_bytes: int

    @classmethod
    def of(cls, config: Config) -> "Scheme":
        """The scheme of a config.

        DeepSpeed's stage 2 sends whole sums to all ranks (`use_multi_rank_bucket_allreduce`), during the backward pass.
        Its buckets count as the groups of stage 1.

        Raises UserError for stage 3 and for offloading, which the model does not cover.
        """
        zero = config.zero
        if zero.stage == 3 or zero.offload != "none":
            raise UserError(
                "The scaling table covers zero.stage 0, 1 and 2 without offload. Change them in the config."
            )
        overlap, dtype = zero.overlap and zero.stage == 1, zero.reduce_dtype
        names = [f"ZeRO {zero.stage}", f"gradients sent in {dtype}", "overlapped" if overlap else "not overlapped"]
        flags = zero.stage != 1, zero.stage > 0, overlap or zero.stage == 2, overlap
        return cls(", ".join(names), *flags, MATRIX_GROUPS if zero.stage else 1, 2 if dtype == "bf16" else _FP32)


# Everything that hides or shrinks communication.
OVERLAPPED = Scheme("ZeRO 1, gradients sent in bf16, overlapped", False, True, True, True, MATRIX_GROUPS, 2)


@dataclass(frozen=True)
class RankStep:
    """A step of one rank. flops: of all its passes. tokens: without padding. passes: micro-batches."""

    flops: float
    tokens: float
    passes: int


@dataclass(frozen=True)
class Scaled:
    """The predicted step on a cluster."""

    nodes: int
    gpus: int
    tokens: float
    time: StepTime

    @property
    def tokens_per_second(self) -> float:
        """Of all GPUs together."""
        return self.tokens / self.time.seconds


@dataclass
class ScalingRequest:
    """Options of the table. gpu, network: names. rate: of each GPU. See the options of `maskwright plan`.

    Without a network, several nodes have one NIC of 400 Gb/s each.

    Raises UserError that names all missing options, or a network that is not known.
    """

    nodes: list[int]
    gpus_per_node: int
    gpu: str | None
    network: str | None
    tokens_per_gpu: int | None
    rate: Rate | None

    def __post_init__(self) -> None:
        lacks = []
        if self.rate is None or self.rate.tflops is None:
            lacks.append("the speed of one GPU (--from RUN, --mfu with --gpu, or --tflops)")
        if self.gpu not in GPUS:
            lacks.append(f"the GPU's links (--gpu with one of {', '.join(GPUS)})")
        if lacks:
            raise UserError(f"The scaling table needs {'; '.join(lacks)}.")
        if self.network is None and max(self.nodes) > 1:
            self.network = "400g"
        if self.network and self.network not in NETWORKS:
            raise UserError(f"--network {self.network!r} is not known; write one of {', '.join(NETWORKS)}")

    def table(self, config: Config, planner: Planner) -> tuple[str, dict[str, list[Scaled]]]:
        """The source of the speeds, and the rows of the unchanged config and of one that hides communication, by name.

        Raises UserError if the batch does not divide.
        """
        assert self.gpu
        assert self.rate
        network = NETWORKS[self.network or next(iter(NETWORKS))]  # one node sends nothing
        gpu, tflops = GPUS[self.gpu], self.rate.tflops or 0.0
        source = f"compute: {self.rate.source}; memory and links: data sheet of {self.gpu}, assumed, not measured"
        clusters = [Cluster(nodes, self.gpus_per_node, gpu, network) for nodes in self.nodes]
        steps = [(rank_step(planner, cluster.ranks, self.tokens_per_gpu), cluster) for cluster in clusters]
        return source, {
            scheme.name: [scaled(config, planner.sizes, step, scheme, cluster, tflops) for step, cluster in steps]
            for scheme in (Scheme.of(config), OVERLAPPED)
        }


def rank_step(planner: Planner, processes: int, tokens_per_gpu: int | None) -> RankStep:
    """The step of a rank in the last stage of the config.

    Args:
        tokens_per_gpu: of a step, without padding, in the config's micro-batches; None divides the config's global
            batch over the processes.

    Raises UserError if the batch does not divide over the processes, or the operations are not known (`arch: auto`).
    """
    stage = planner.plan(1 if tokens_per_gpu else processes).stages[-1]
    if stage.flops is None:
        raise UserError("The operations of a model of arch auto are not known, and the scaling table needs them.")
    if tokens_per_gpu is None:
        share = stage.steps * processes
        return RankStep(stage.flops / share, stage.tokens / share, stage.accumulation)
    tokens_per_pass = stage.tokens / stage.steps / stage.accumulation
    passes = math.ceil(tokens_per_gpu / tokens_per_pass - 1e-9)
    return RankStep(stage.flops / stage.tokens * tokens_per_gpu, tokens_per_gpu, passes)


def scaled(config: Config, sizes: Sizes, step: RankStep, scheme: Scheme, cluster: Cluster, tflops: float) -> Scaled:
    """Predict the step of a config on a cluster.

    Args:
        tflops: that each GPU achieves at this model, in 10**12 operations per second.
    """
    optimizer = optimizer_bytes(config, sizes, cluster.ranks) / cluster.gpu.memory + _LAUNCHES
    compute = Compute(step.flops / (tflops * 1e12), step.passes, optimizer)
    sent = communication(sizes, scheme, element_size(config.train.precision), cluster)
    return Scaled(cluster.nodes, cluster.ranks, step.tokens * cluster.ranks, step_time(compute, sent))


def communication(sizes: Sizes, scheme: Scheme, weight_bytes: int, cluster: Cluster) -> Communication:
    """The collectives of a step. weight_bytes: of a weight that is gathered."""
    buckets = _buckets(sizes, scheme.matrix_groups)
    factor = 2 if scheme.all_reduce else 1
    reduce = [Transfer(factor * cluster.ring(numel * scheme.reduce_bytes), share) for numel, share in reversed(buckets)]
    gather = [Transfer(cluster.ring(numel * weight_bytes), share) for numel, share in buckets] if scheme.gathers else []
    flags = scheme.overlap_reduce, scheme.overlap_gather
    small = 3 if scheme.all_reduce else 2  # predictions; losses with, in ZeRO 1, the gradient norm
    return Communication(tuple(reduce), tuple(gather), small * cluster.small, *flags)


def _buckets(sizes: Sizes, depths: int) -> list[tuple[int, float]]:
    """(elements, share of the compute of a pass) of each bucket in the order of the forward pass.

    Only matrices count as compute: the share of embeddings and vectors is small.
    """
    parts = [(kind, sum(numels)) for kind, numels in groups(sizes, depths)]
    matrices = sum(numel for kind, numel in parts if kind == "matrix")
    buckets = [[parts[number] for number in numbers] for numbers in group_buckets([kind for kind, _ in parts])]
    return [
        (sum(numel for _, numel in held), sum(numel for kind, numel in held if kind == "matrix") / matrices)
        for held in buckets
    ]


def optimizer_bytes(config: Config, sizes: Sizes, ranks: int) -> float:
    """Bytes that the update of the weights reads and writes on a rank, at most: AdamW's Triton kernel moves fewer.

    All gradients are copied to fp32 once (stages 1 and 2). Of its part a rank reads the gradients for the norm, scales
    them (not in stage 1, where the kernel of AdamW does so), and reads gradients, weights and state and writes weights,
    state and the weights of the model. The operations of muon's iteration do not count.
    """
    element, stage = element_size(config.train.precision), config.zero.stage
    copied = sizes.total * (element + _FP32) if stage else 0
    gradient = (2 if stage == 1 else 4) * _FP32
    of_one = gradient + 2 * _FP32 + (element if stage else 0)
    part = sizes.total / (ranks if stage else 1)
    return copied + part * of_one + 2 * optimizer_state(config, sizes, ranks)
