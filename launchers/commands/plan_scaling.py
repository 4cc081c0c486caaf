"""The scaling table of `maskwright plan`: step time, its parts and efficiency for several numbers of nodes."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from data_prep.common.errors import UserError
from launchers.display import text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import Config
    from pretrain.planning import Planner, Rate, Scaled

_MS = ("compute", "reduce", "gather", "small", "optimizer", "data_wait")
_HEADER = (
    "nodes",
    "GPUs",
    "step",
    "compute",
    "gradients",
    "weights",
    "small",
    "optimizer",
    "data",
    "tokens/s",
    "efficiency",
)


@dataclass(frozen=True)
class ScalingRequest:
    """Options of the table. gpu, network: names. See the options of `plan`."""

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


def node_counts(text: str) -> list[int]:
    """The numbers of --nodes.

    Raises:
        UserError: if they are not whole numbers from 1, separated by commas.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--nodes {text!r} is not a number of nodes, or several with commas, such as 1,2,8,32")
    return [int(word) for word in words]


def with_defaults(
    config: "Config", asked: ScalingRequest, rate: "Rate | None", has_data: bool
) -> "tuple[ScalingRequest, Rate | None]":
    """The request and the speed, where missing ones have defaults: one 400 Gb/s network, and the measured H100.

    Raises:
        UserError: names all missing options.
    """
    from pretrain.planning import default_rate, link_names

    if rate is None and not asked.constants and config.train.precision != "fp32":
        rate = default_rate(asked.gpu, config.model.arch)
    lacks = []
    if not asked.constants and (rate is None or rate.tflops is None):
        lacks.append("the speed of one GPU (--from RUN, --mfu with --gpu, --tflops or --constants)")
    if asked.gpu not in link_names() and not asked.constants:
        lacks.append(f"the GPU's links (--gpu with one of {', '.join(link_names())})")
    if not has_data:
        lacks.append("the data sets of the config, or --vocab-size N")
    if lacks:
        raise UserError(f"The scaling table needs {'; '.join(lacks)}.")
    is_default = asked.network is None and max(asked.nodes) > 1
    return (replace(asked, network="400g") if is_default else asked), rate


def show_scaling(
    config: "Config", planner: "Planner", asked: ScalingRequest, rate: "Rate | None", as_json: bool
) -> None:
    """Print a table for the unchanged config, and one with everything that hides communication.

    Raises:
        UserError: if the speed, the links or the network are not known, or the batch does not divide.
    """
    from pretrain.planning import Cluster, Constants, hardware_of, network_of, scaling_table

    network = network_of(asked.network)
    measured = Constants.read(asked.constants) if asked.constants else None
    if measured and rate is None:
        rate = measured.rate(planner.shape, config.stages[-1].seq_len)
    hardware = hardware_of(rate, asked.gpu, measured, asked.data_wait)
    clusters = [Cluster(nodes, asked.gpus_per_node, hardware.gpu, network) for nodes in asked.nodes]
    found = scaling_table(config, planner, hardware, clusters, asked.tokens_per_gpu)
    if as_json:
        schemes = {name: [_fact(row) for row in rows] for name, rows in found.items()}
        print(json.dumps({"source": hardware.source, "network": asked.network, "schemes": schemes}, indent=1))
        return
    console = text_console()
    console.print(f"{config.model.title}, {planner.sizes.total:,} parameters, {_batch(asked)}")
    for name, rows in found.items():
        console.print(_table(name, rows))
    console.print("Milliseconds. gradients, weights: communication that compute does not hide.")
    console.print("Efficiency: speed of a GPU as a share of one that only computes.")
    console.print(f"{hardware.source}. The bandwidth of --network is 85% of its line rate, assumed, not measured.")


def _batch(asked: ScalingRequest) -> str:
    network = f"network {asked.network}" if asked.network else "no network"
    if asked.tokens_per_gpu:
        return f"{asked.tokens_per_gpu:,} tokens per GPU and step, {network}"
    return f"the config's batch divided over all GPUs, {network}"


def _fact(row: "Scaled") -> dict[str, Any]:
    whole = {"seconds": row.time.seconds, "exposed": row.time.exposed}
    speed = {"tokens_per_second": row.tokens_per_second, "efficiency": row.time.efficiency}
    return {"nodes": row.nodes, "gpus": row.gpus, "tokens": row.tokens, **asdict(row.time), **whole, **speed}


def _table(name: str, rows: list["Scaled"]) -> Table:
    table = text_table(_HEADER, title=name)
    for row in rows:
        parts = [row.time.seconds, *(getattr(row.time, part) for part in _MS)]
        speed = f"{row.tokens_per_second:,.0f}", f"{row.time.efficiency:.1%}"
        table.add_row(f"{row.nodes}", f"{row.gpus}", *(f"{1e3 * part:.1f}" for part in parts), *speed)
    return table
