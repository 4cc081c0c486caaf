"""Speed and links of a GPU: from its data sheet, from a rate, or measured by benchmarks/gpu_table.py."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.common.errors import UserError
from data_prep.common.reading import read_json, typed, unusable
from pretrain.model import EncoderShape
from pretrain.planning.collectives import GPUS, NETWORKS, GpuLinks, Network
from pretrain.planning.speed import Rate

_MEASURED: dict[tuple[str | None, str], float] = {
    ("H100", "bert"): 375,
    ("H100", "roberta"): 375,
    ("H100", "modernbert"): 319,
}
"""TFLOP/s of whole steps with Triton kernels, by GPU and architecture: benchmarks/results/gpu_table.md."""


@dataclass(frozen=True)
class Hardware:
    """Speed of one GPU, and its links.

    Attributes:
        source: where the figures come from.
        tflops: achieved at this model, in 10**12 operations per second.
        slowdown: share of its speed that compute loses while a collective runs.
        data_wait: seconds per step.
    """

    source: str
    tflops: float
    gpu: GpuLinks
    slowdown: float = 0.0
    data_wait: float = 0.0


@dataclass(frozen=True)
class Constants:
    """Results of the phase `constants` of benchmarks/gpu_table.py.

    Attributes:
        rates: TFLOP/s by (layers, hidden, seq_len).
        memory: bytes per second of an optimizer step; None if not measured.
        link, hop: bytes per second, and seconds per hop, of the collectives of a node; None with one GPU.
        slowdown: see Hardware.
    """

    path: Path
    rates: dict[tuple[int, int, int], float]
    memory: float | None
    link: float | None
    hop: float | None
    slowdown: float

    @classmethod
    def read(cls, path: Path) -> "Constants":
        """Read the JSON file of gpu_table.

        Raises:
            UserError: if the file cannot be read, or has no such phase.
        """
        hint = "name the JSON file of python -m benchmarks.gpu_table --only constants"
        try:
            return cls._of(path, read_json(path, dict[str, Any], hint=hint, nan=True)["phases"]["constants"]["result"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise unusable(path, "it has no measured constants", hint) from None

    @classmethod
    def _of(cls, path: Path, result: dict[str, Any]) -> "Constants":
        rates = {
            typed(tuple[int, int, int], [one["layers"], one["hidden"], one["seq_len"]]): _rate(one["TFLOP/s"])
            for one in result["rates"].values()
            if "TFLOP/s" in one
        }
        links = result["ranks"]
        most = links[max(links, key=int)] if links else {}
        found = (result["memory bytes per second"], most.get("bytes per second"), most.get("seconds per hop"))
        memory, link, hop = (None if value is None else _rate(value) for value in found)
        return cls(path, rates, memory, link, hop, typed(float, most.get("slowdown", 0.0)))

    def rate(self, shape: EncoderShape | None, seq_len: int) -> Rate:
        """The measured rate of a model with as many layers of the same width, at the nearest row length.

        Raises:
            UserError: if the file has no such model.
        """
        alike = [key for key in self.rates if shape and key[:2] == (shape.layers, shape.hidden)]
        if not alike:
            raise UserError(f"{self.path} has no rate of a model of this size. Give --tflops.")
        nearest = min(alike, key=lambda key: abs(key[2] - seq_len))
        return Rate(f"measured in {self.path}, rows of {nearest[2]}", tflops=self.rates[nearest])


def _rate(value: Any) -> float:
    """A finite number above 0. Raises ValueError."""
    if not (number := float(typed(float, value))) > 0:
        raise ValueError(f"{value} is not above 0")
    return number


def default_rate(gpu: str | None, arch: str) -> Rate | None:
    """The speed that was measured on a GPU with a base model of this architecture; None if it was not."""
    tflops = _MEASURED.get((gpu, arch))
    source = f"measured with a base model on one {gpu} (benchmarks/results/gpu_table.md): {tflops} TFLOP/s"
    return Rate(source, tflops=tflops) if tflops else None


def link_names() -> list[str]:
    """The GPUs with known links."""
    return [*GPUS]


def network_of(name: str | None) -> Network:
    """A named network. One node needs no name: it sends nothing.

    Raises:
        UserError: for an unknown name.
    """
    name = name or next(iter(NETWORKS))
    if name not in NETWORKS:
        raise UserError(f"--network {name!r} is not known; write one of {', '.join(NETWORKS)}")
    return NETWORKS[name]


def hardware_of(rate: Rate | None, gpu: str | None, measured: Constants | None, data_wait: float) -> Hardware:
    """Speed and links of a GPU.

    Args:
        rate: operations per second.
        gpu: its model; figures that were not measured come from its data sheet.
        data_wait: seconds per step.

    Raises:
        UserError: if the speed or the links are not known.
    """
    if rate is None or rate.tflops is None:
        raise UserError(
            "The scaling table needs the speed of one GPU: give --from RUN, --mfu with --gpu, --tflops or --constants."
        )
    known = GPUS[gpu].links if gpu in GPUS else None
    links = _links(known, measured)
    if links is None:
        raise UserError(f"The links of the GPU are not known. Write --gpu with one of {', '.join(GPUS)}.")
    sources = [f"compute: {rate.source}"]
    if links == known:
        sources.append(f"memory and links: data sheet of {gpu}, assumed, not measured")
    elif measured:
        sources.append(f"memory and links: {measured.path}")
    return Hardware("; ".join(sources), rate.tflops, links, measured.slowdown if measured else 0.0, data_wait)


def _links(known: GpuLinks | None, measured: Constants | None) -> GpuLinks | None:
    """Links of the data sheet, replaced by those that were measured; None if some are not known."""
    found = measured and {"memory": measured.memory, "link": measured.link, "hop": measured.hop}
    given = {name: value for name, value in (found or {}).items() if value is not None}
    if known is None:
        return GpuLinks(**given) if {"memory", "link"} <= given.keys() else None
    return replace(known, **given)
