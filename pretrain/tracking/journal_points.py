"""The points of a journal that a tracker gets: each metric of a step once, under a name that MLflow takes."""

import functools
import logging
import posixpath
import re
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pretrain.run import Entry

_log = logging.getLogger(__name__)

MOST_NAMES = 200  # metrics of a run in MLflow, whose pages get slow with more
_LONGEST_NAME = 250  # of a metric
_PAGE_STEPS = 4096
# MLflow's pages sort groups of charts by name, and show system/ on a separate tab. Metrics that few readers need first
# go there. eval/ and train/ are then the first groups: losses, accuracies, learning rate, speed.
_PLACES = {
    "checkpoint/": "system/checkpoint_",
    "data/": "system/data_",
    "eval/seconds": "system/eval_seconds",
    "speed/mfu": "train/mfu",
    "speed/tokens_per_second": "train/tokens_per_second",
    "speed/": "system/",
    "train/mask_rate": "system/mask_rate",
    "train/phase": "system/phase",
    "train/rollback_to": "system/rollback_to",
    "train/rows_left_out": "system/rows_left_out",
    "train/skipped": "system/skipped",
    "train/spike": "system/spike",
}
_MOVED = re.compile("|".join(_PLACES))
_OF_NODE = re.compile(r"system/[^/]+/(?P<gpu>gpu\d+_)?(?P<what>\w+)")


class Point(NamedTuple):
    """A metric's value at a step; `time` is in Unix seconds."""

    name: str
    value: float
    time: float
    step: int


class SentSteps:
    """The (metric, step) pairs already sent, a bit each: 5 MB at a million steps of 40 metrics.

    It takes the first MOST_NAMES metrics. The bits are in pages, because a damaged journal can have any step.
    """

    def __init__(self) -> None:
        self._pages: dict[str, dict[int, int]] = {}
        self._warned = False

    def take_new(self, entry: Entry) -> list[Point]:
        """The points of `entry` that were not sent before; from now on they count as sent. See `over_nodes`."""
        metrics = over_nodes(entry.metrics)
        return [Point(name, metrics[name], entry.time, entry.step) for name in self.add(entry.step, list(metrics))]

    def add(self, step: int, names: Sequence[str]) -> list[str]:
        """Count these metrics of a step as sent, and return those that were not sent before."""
        new = []
        page, place = divmod(step, _PAGE_STEPS)
        for given in names:
            name = metric_name(given)
            if name not in self._pages and len(self._pages) == MOST_NAMES:
                if not self._warned:
                    _log.warning("The run has more than %d metrics. Its journal has %s and others.", MOST_NAMES, given)
                self._warned = True
                continue
            pages = self._pages.setdefault(name, {})
            if not (sent := pages.get(page, 0)) >> place & 1:
                pages[page] = sent | 1 << place
                new.append(given)
        return new


def over_nodes(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics with `system/HOST/NAME` of the nodes replaced by few names, for any number of nodes.

    `system/NAME_mean` is the mean over the nodes, or over their GPUs; `system/NAME_min` and `system/NAME_max` are there
    for several. The journal names the nodes.
    """
    nodes: dict[str, list[float]] = {}
    few = {}
    for name, value in metrics.items():
        if match := _OF_NODE.fullmatch(name):
            nodes.setdefault(f"system/{'gpu_' if match['gpu'] else ''}{match['what']}", []).append(value)
        else:
            few[name] = value
    for name, values in nodes.items():
        few[f"{name}_mean"] = statistics.fmean(values)
        if len(values) > 1:
            few |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    return few


@functools.cache
def metric_name(name: str) -> str:
    """The name in MLflow, which refuses a whole request for one name with other signs or too long.

    A data set's folder, which a name may hold, can be called anything. A name of MLflow's stays unchanged.
    """
    moved = _PLACES[match[0]] + name[match.end() :] if (match := _MOVED.match(name)) else name
    usual = re.sub(r"[^/\w.\- :]", "_", moved)[:_LONGEST_NAME]
    return usual if posixpath.normpath(usual) == usual and usual[0] not in "./" else "_" + usual.replace("/", "_")
