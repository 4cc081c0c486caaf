"""The scaling table that a user asks for: its options, their defaults, and its figures."""

from dataclasses import dataclass, replace

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.planning.cluster_speed import OVERLAPPED, Scaled, Scheme, rank_step, scaled
from pretrain.planning.collectives import GPUS, NETWORKS, Cluster
from pretrain.planning.run_plan import Planner
from pretrain.planning.speed import Rate

_MEASURED: dict[tuple[str | None, str], float] = {
    ("H100", "bert"): 375,
    ("H100", "roberta"): 375,
    ("H100", "modernbert"): 319,
}
"""TFLOP/s of whole steps with Triton kernels, by GPU and architecture: benchmarks/results/gpu_table.md."""


@dataclass(frozen=True)
class ScalingRequest:
    """Options of the table. gpu, network: names. See the options of `maskwright plan`."""

    nodes: list[int]
    gpus_per_node: int
    gpu: str | None
    network: str | None
    tokens_per_gpu: int | None
    data_wait: float

    @property
    def wanted(self) -> bool:
        """Whether an option asks for the table."""
        return len(self.nodes) > 1 or any((self.network, self.tokens_per_gpu, self.data_wait))

    def with_defaults(self, config: Config, rate: Rate | None, has_data: bool) -> "tuple[ScalingRequest, Rate]":
        """The request and the speed, where missing ones have defaults: one 400 Gb/s network, and the measured H100.

        Raises:
            UserError: names all missing options.
        """
        if rate is None and config.train.precision != "fp32":
            rate = _default_rate(self.gpu, config.model.arch)
        lacks = []
        if rate is None or rate.tflops is None:
            lacks.append("the speed of one GPU (--from RUN, --mfu with --gpu, or --tflops)")
        if self.gpu not in GPUS:
            lacks.append(f"the GPU's links (--gpu with one of {', '.join(GPUS)})")
        if not has_data:
            lacks.append("the data sets of the config, or --vocab-size N")
        if lacks or rate is None:
            raise UserError(f"The scaling table needs {'; '.join(lacks)}.")
        is_default = self.network is None and max(self.nodes) > 1
        return (replace(self, network="400g") if is_default else self), rate

    def table(self, config: Config, planner: Planner, rate: Rate) -> tuple[str, dict[str, list[Scaled]]]:
        """The source of the speeds, and the rows of the unchanged config and of one that hides communication, by name.

        Call it on what `with_defaults` returns, with the rate that it returns.

        Raises:
            UserError: if the network is not known, or the batch does not divide.
        """
        name = self.network or next(iter(NETWORKS))  # one node sends nothing
        if name not in NETWORKS:
            raise UserError(f"--network {name!r} is not known; write one of {', '.join(NETWORKS)}")
        gpu = GPUS[self.gpu or ""].links
        source = f"compute: {rate.source}; memory and links: data sheet of {self.gpu}, assumed, not measured"
        clusters = [Cluster(nodes, self.gpus_per_node, gpu, NETWORKS[name]) for nodes in self.nodes]
        steps = [(rank_step(planner, cluster.ranks, self.tokens_per_gpu), cluster) for cluster in clusters]
        return source, {
            scheme.name: [
                scaled(config, planner.sizes, step, scheme, cluster, rate.tflops or 0.0, self.data_wait)
                for step, cluster in steps
            ]
            for scheme in (Scheme.of(config), OVERLAPPED)
        }


def _default_rate(gpu: str | None, arch: str) -> Rate | None:
    """The speed that was measured on a GPU with a base model of this architecture; None if it was not."""
    tflops = _MEASURED.get((gpu, arch))
    source = f"measured with a base model on one {gpu} (benchmarks/results/gpu_table.md): {tflops} TFLOP/s"
    return Rate(source, tflops=tflops) if tflops else None
