"""The scaling table of `maskwright plan`: step time, its parts and efficiency for several numbers of nodes."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from launchers.display.tables import text_console, text_table

if TYPE_CHECKING:
    from pretrain.config import Config
    from pretrain.planning import Planner, Scaled, ScalingRequest

_MS = ("compute", "reduce", "gather", "small", "optimizer")
_HEADER = ("nodes", "GPUs", "step", "compute", "gradients", "weights", "small", "optimizer", "tokens/s", "efficiency")


def print_scaling(config: "Config", planner: "Planner", asked: "ScalingRequest", as_json: bool) -> None:
    """Print a table for the unchanged config, and one with everything that hides communication.

    Raises UserError as ScalingRequest.table.
    """
    source, tables = asked.table(config, planner)
    if as_json:
        schemes = {name: [_fact(row) for row in rows] for name, rows in tables.items()}
        print(json.dumps({"source": source, "network": asked.network, "schemes": schemes}, indent=1))
        return
    console = text_console()
    console.print(f"{config.model.title}, {planner.sizes.total:,} parameters, {_batch(asked)}")
    for name, rows in tables.items():
        console.print(_table(name, rows))
    console.print("Milliseconds. gradients, weights: communication that compute does not hide.")
    console.print("Efficiency: speed of a GPU as a share of one that only computes.")
    console.print(f"{source}. The bandwidth of --network is 85% of its line rate, assumed, not measured.")


def _batch(asked: "ScalingRequest") -> str:
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
