"""The scaling table that a user asks for: its options, their defaults, and its figures."""

from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.planning.cluster_speed import Scaled, scaling_table
from pretrain.planning.collectives import Cluster
from pretrain.planning.hardware import Constants, default_rate, hardware_of, link_names, network_of
from pretrain.planning.run_plan import Planner
from pretrain.planning.speed import Rate


@dataclass(frozen=True)
class ScalingRequest:
    """Options of the table. gpu, network: names. See the options of `maskwright plan`."""

    nodes: list[int]
    gpus_per_node: int
    gpu: str | None
    network: str | None
    tokens_per_gpu: int | None
    constants: Path | None
    data_wait: float

    @property
    def wanted(self) -> bool:
        """Whether an option asks for the table."""
        return len(self.nodes) > 1 or any((self.network, self.tokens_per_gpu, self.constants, self.data_wait))

    def with_defaults(self, config: Config, rate: Rate | None, has_data: bool) -> "tuple[ScalingRequest, Rate | None]":
        """The request and the speed, where missing ones have defaults: one 400 Gb/s network, and the measured H100.

        Raises:
            UserError: names all missing options.
        """
        if rate is None and not self.constants and config.train.precision != "fp32":
            rate = default_rate(self.gpu, config.model.arch)
        lacks = []
        if not self.constants and (rate is None or rate.tflops is None):
            lacks.append("the speed of one GPU (--from RUN, --mfu with --gpu, --tflops or --constants)")
        if self.gpu not in link_names() and not self.constants:
            lacks.append(f"the GPU's links (--gpu with one of {', '.join(link_names())})")
        if not has_data:
            lacks.append("the data sets of the config, or --vocab-size N")
        if lacks:
            raise UserError(f"The scaling table needs {'; '.join(lacks)}.")
        is_default = self.network is None and max(self.nodes) > 1
        return (replace(self, network="400g") if is_default else self), rate

    def table(self, config: Config, planner: Planner, rate: Rate | None) -> tuple[str, dict[str, list[Scaled]]]:
        """The source of the speeds, and the rows of the unchanged config and of one that hides communication, by name.

        Raises:
            UserError: if the speed, the links or the network are not known, or the batch does not divide.
        """
        network = network_of(self.network)
        measured = Constants.read(self.constants) if self.constants else None
        if measured and rate is None:
            rate = measured.rate(planner.shape, config.stages[-1].seq_len)
        hardware = hardware_of(rate, self.gpu, measured, self.data_wait)
        clusters = [Cluster(nodes, self.gpus_per_node, hardware.gpu, network) for nodes in self.nodes]
        return hardware.source, scaling_table(config, planner, hardware, clusters, self.tokens_per_gpu)
