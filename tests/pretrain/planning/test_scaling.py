"""The scaling model against sums by hand, chains of compute and transfers, and properties that must hold."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.config import Config
from pretrain.model import Sizes
from pretrain.planning.cluster_speed import OVERLAPPED, RankStep, Scheme, communication, scaled
from pretrain.planning.collectives import Cluster, GpuModel, Network
from pretrain.planning.scaling import Communication, Compute, Transfer, step_time
from tests.support.configs import least_config

SIZES = Sizes({"matrix": (600_000, 300_000), "embedding": (90_000,), "vector": (10_000,)}, layers=(0, 1))
SECONDS = st.floats(0, 10)
GROUPS = st.lists(st.tuples(SECONDS, st.floats(0.01, 1)), min_size=1, max_size=8)


def config(stage: int = 1, precision: str = "bf16", **train: int) -> Config:
    return least_config(zero={"stage": stage, "overlap": stage != 1}, train={"precision": precision, **train})


def cluster(nodes: int = 4, gpus: int = 2, link: float = 1e9, network: float = 1e8, hop: float = 1e-5) -> Cluster:
    return Cluster(nodes, gpus, GpuModel(1e12, link, 80, hop=0.0), Network(network, hop))


def transfers(groups: list[tuple[float, float]]) -> tuple[Transfer, ...]:
    whole = sum(share for _, share in groups)
    return tuple(Transfer(seconds, share / whole) for seconds, share in groups)


def exposed(kind: str, groups: tuple[Transfer, ...], passes: float) -> float:
    """Seconds that the sums or the gathers of a step of one forward and backward pass add."""
    found = Communication(*((groups, ()) if kind == "reduce" else ((), groups)), 0.0, True, True)
    return step_time(Compute(passes, 1, 0.0), found).exposed


# Collectives


def test_the_slowest_link_of_the_ring_decides():
    assert cluster(nodes=4).bandwidth == 1e8
    assert cluster(nodes=1).bandwidth == 1e9  # inside the node
    assert cluster(nodes=4, network=1e10).bandwidth == 1e9
    assert cluster(nodes=4, gpus=1, network=1e10).bandwidth == 1e10
    assert cluster(nodes=1, gpus=1).ring(1e9) == cluster(nodes=1, gpus=1).small == 0


def test_the_latency_of_a_ring_counts_hops_inside_and_between_nodes():
    found = Cluster(3, 4, GpuModel(1.0, math.inf, 80, hop=1.0), Network(math.inf, hop=100.0))
    assert found.ring(1e9) == pytest.approx(2 * 100 + 9 * 1, rel=1e-5)
    assert found.small == pytest.approx(2 * (2 * 100 + 2 * 1), rel=1e-5)


# The step


def test_without_overlap_all_parts_add_up():
    sent = Communication((Transfer(1.0, 0.5), Transfer(2.0, 0.5)), (Transfer(4.0, 1.0),), 0.25, False, False)
    found = step_time(Compute(8.0, 2, 0.5), sent)
    assert (found.compute, found.reduce, found.gather, found.small) == (8.0, 3.0, 4.0, 0.25)
    assert found.seconds == 8 + 3 + 4 + 0.25 + 0.5
    assert found.efficiency == pytest.approx(8 / found.seconds)


@given(GROUPS, SECONDS)
def test_the_longest_chain_of_compute_and_transfers_decides(groups, passes):
    """A chain computes up to a group and then sends it and all later ones, or receives up to a group and computes."""
    found = transfers(groups)
    sent = [transfer.seconds for transfer in found]
    for kind, seconds in (("reduce", passes * 2 / 3), ("gather", passes / 3)):
        computed = [transfer.share * seconds for transfer in found]
        first, then = (computed, sent) if kind == "reduce" else (sent, computed)
        chains = [sum(first[: at + 1]) + sum(then[at:]) for at in range(len(found))]
        assert seconds + exposed(kind, found, passes) == pytest.approx(max(chains))


# A config on a cluster


def test_the_bytes_of_each_stage():
    """A ring over 2 nodes of one GPU sends half of the bytes; the latency is cancelled by a second size."""

    def bytes_sent(stage: int, precision: str = "bf16") -> tuple[float, float]:
        two = Cluster(2, 1, GpuModel(1.0, math.inf, 80, hop=0.0), Network(1.0, 0.0))
        weight = 4 if precision == "fp32" else 2
        found = communication(SIZES, Scheme.of(config(stage, precision)), weight, two)
        return tuple(round(2 * sum(one.seconds for one in part)) for part in (found.reduce, found.gather))

    assert bytes_sent(1) == (4_000_000, 2_000_000)
    assert bytes_sent(1, "fp32") == (4_000_000, 4_000_000)
    assert bytes_sent(0, "fp32") == (8_000_000, 0)
    assert bytes_sent(2) == (8_000_000, 2_000_000)


def test_the_collectives_are_those_of_the_engine():
    """Of 24 layers with 2 matrices of 1 MB in bf16. The first goes with embeddings of 8 MB and vectors of 2 MB."""
    sizes = Sizes(
        {"matrix": (500_000,) * 48, "embedding": (3_000_000, 1_000_000), "vector": (1_000_000,)},
        layers=tuple(number // 2 for number in range(48)),
    )
    two = Cluster(2, 1, GpuModel(1.0, math.inf, 80, hop=0.0), Network(1e6, 0.0))
    found = communication(sizes, OVERLAPPED, 2, two)
    layers = 1, 2, 3, 2, 4, 4, 4, 4
    megabytes = [8 + 2 + 2, *(2 * count for count in layers[1:])]
    assert [one.seconds for one in found.gather] == pytest.approx([size / 2 for size in megabytes], rel=1e-4)
    assert [one.share for one in found.gather] == pytest.approx([count / 24 for count in layers])
    assert found.reduce == found.gather[::-1]


def test_the_optimizer_works_on_the_part_of_a_rank():
    """ZeRO 1 in bf16: 6 bytes of every gradient; of the part 8 + 8 + 2, and the state of 8 read and written."""
    step = RankStep(flops=1e12, tokens=1.0, passes=1)
    for ranks in (2, 4):
        found = scaled(config(), SIZES, step, OVERLAPPED, cluster(ranks, 1), 1.0).time.optimizer
        part = 1e6 / ranks
        assert found - 1e-4 == pytest.approx((6e6 + part * (8 + 8 + 2 + 16)) / 1e12, rel=1e-3)


def test_a_step_by_hand():
    """Two nodes of one GPU, 10**12 operations at 2 TFLOP/s: half a second, and both collectives after it."""
    step = RankStep(flops=1e12, tokens=1000.0, passes=1)
    found = scaled(config(), SIZES, step, Scheme.of(config()), cluster(2, 1, network=1e6, hop=0.0), 2.0)
    assert found.time.compute == 0.5
    assert found.time.exposed == pytest.approx(2.0 + 1.0, rel=1e-3)  # half of 4 MB and of 2 MB at 1 MB/s
    assert found.tokens_per_second == pytest.approx(2000 / found.time.seconds)
