"""Points for MLflow, made from journal entries: each metric and step once, and node metrics combined."""

import functools
import posixpath
import re
import statistics
from dataclasses import replace
from typing import NamedTuple

from pretrain.run.journal import Entry

_LONGEST_NAME = 250
_OF_NODE = re.compile(r"system/[^/]+/(?P<gpu>gpu\d+_)?(?P<what>\w+)")


class Point(NamedTuple):
    """A metric's value at a step; `time` is in Unix seconds."""

    name: str
    value: float
    time: float
    step: int


class SentSteps:
    """The (metric, step) pairs already sent, a bit each: 5 MB at a million steps of 40 metrics."""

    def __init__(self) -> None:
        self._seen: dict[str, bytearray] = {}

    def take_new(self, entry: Entry) -> list[Point]:
        """The metrics of `entry` that were not sent before at its step; from now on they count as sent."""
        new = []
        byte, bit = entry.step >> 3, 1 << (entry.step & 7)
        for name, value in entry.metrics.items():
            seen = self._seen.setdefault(name, bytearray())
            if len(seen) <= byte:
                seen.extend(bytes(byte + 1 - len(seen)))
            if not seen[byte] & bit:
                seen[byte] |= bit
                new.append(Point(name, value, entry.time, entry.step))
        return new


def over_nodes(entry: Entry) -> Entry:
    """The entry with `system/HOST/NAME` of the nodes replaced by few names, for any number of nodes.

    `system/NAME_mean` is the mean over the nodes, or over their GPUs; `system/NAME_min` and `system/NAME_max` are there
    for several. The journal names the nodes.
    """
    nodes: dict[str, list[float]] = {}
    metrics = {}
    for name, value in entry.metrics.items():
        if found := _OF_NODE.fullmatch(name):
            nodes.setdefault(f"system/{'gpu_' if found['gpu'] else ''}{found['what']}", []).append(value)
        else:
            metrics[name] = value
    for name, values in nodes.items():
        metrics[f"{name}_mean"] = statistics.fmean(values)
        if len(values) > 1:
            metrics |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    return replace(entry, metrics=metrics) if nodes else entry


@functools.cache
def metric_name(name: str) -> str:
    """The name in MLflow, which refuses a whole request for one name with other signs or too long.

    A data set's folder, which a name may hold, can be called anything.
    """
    usual = re.sub(r"[^/\w.\- :]", "_", name)[:_LONGEST_NAME]
    return usual if posixpath.normpath(usual) == usual and usual[0] not in "./" else "_" + usual.replace("/", "_")
