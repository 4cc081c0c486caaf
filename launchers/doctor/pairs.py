"""Who exchanges with whom, and who is slower than the others: pure functions."""

import statistics
from collections.abc import Mapping

Pair = tuple[int, int]
_MADS = 4.0  # beyond so many median absolute deviations, scaled to standard deviations of a normal distribution
_MAD_TO_DEVIATION = 1.4826
_SPREAD_OF = 5  # values: the deviations of fewer say nothing


def rounds(nodes: int, most: int | None = None) -> list[list[Pair]]:
    """All pairs of nodes in rounds that keep every node busy once, by the circle method; `most`: not all rounds."""
    players: list[int | None] = [*range(nodes), *([None] if nodes % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        both = zip(players[:half], reversed(players[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in both if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    return found[:most]


def outliers(values: Mapping[str, float], ratio: float, higher_is_better: bool = True) -> dict[str, float]:
    """Those that are worse than the rest, with their ratio to the median.

    A value is one if it is beyond `ratio` times the median (below it where higher is better, `ratio` < 1; else above)
    and, among five or more, further than four scaled median absolute deviations from it, so that what spreads anyway
    has none. Of an even number of values the better middle one is the median: of two, the worse can be an outlier.
    """
    if len(values) < 2:
        return {}
    numbers = list(values.values())
    middle = statistics.median_high(numbers) if higher_is_better else statistics.median_low(numbers)
    spread = 0.0
    if len(numbers) >= _SPREAD_OF:
        spread = statistics.median_low([abs(number - middle) for number in numbers]) * _MAD_TO_DEVIATION
    found = {}
    for name, value in values.items():
        beyond = value < ratio * middle if higher_is_better else value > ratio * middle
        if beyond and abs(value - middle) > _MADS * spread:
            found[name] = value / middle
    return found


def by_node(pairs: Mapping[tuple[str, str], float], higher_is_better: bool = True) -> dict[str, float]:
    """The best value among the pairs of each node: that of a node with a bad link is bad with every partner."""
    best = max if higher_is_better else min
    names = {name: None for pair in pairs for name in pair}
    return {name: best(value for pair, value in pairs.items() if name in pair) for name in names}


def bad_pairs(
    pairs: Mapping[tuple[str, str], float], ratio: float, higher_is_better: bool = True
) -> dict[tuple[str, str], float]:
    """Pairs that are worse than both of their nodes can be, with the ratio: a bad way between two good nodes."""
    nodes = by_node(pairs, higher_is_better)
    worse = min if higher_is_better else max
    found = {pair: value / worse(nodes[name] for name in pair) for pair, value in pairs.items()}
    return {pair: share for pair, share in found.items() if (share < ratio if higher_is_better else share > ratio)}


def clock_offset(sent: float, theirs: float, received: float) -> float:
    """How far another clock is ahead, from its time between two of ours, as NTP reckons (RFC 5905)."""
    return theirs - (sent + received) / 2
