"""Time of collectives on a cluster of GPUs: named networks and GPUs, and the formulas of rings and trees.

A ring over n ranks passes a tensor of B bytes in n - 1 steps of B / n bytes (Thakur et al., "Optimization of collective
communication operations in MPICH", 2005). NCCL lays it so that each node sends to one other node: its NICs together
carry what a ring carries, and the slowest link decides. Latencies add up along the ring, as in NCCL's own cost model
(src/graph/tuning.cc of NCCL 2.20).
"""

import math
from dataclasses import dataclass

# NCCL 2.20, src/graph/tuning.cc, ring with the protocol Simple, in seconds.
_START = 8.4e-6  # baseLat: to begin a collective
_INSIDE_HOP = 3.4e-6  # hwLat, NVLINK
_BETWEEN_HOP = 14e-6  # hwLat, NET
_SOCKET_HOP = 50e-6  # assumed for TCP, which has no constant there
# Assumed, not measured: the share of a link's line rate that a collective of large tensors reaches. NCCL itself counts
# on 20.6 of 25 GB/s for each NVLink of an H100 (SM90_NVLINK_BW in src/graph/topo.h).
_SHARE_INSIDE, _SHARE_BETWEEN, _SHARE_MEMORY = 0.8, 0.85, 0.8
_GBIT, _GB = 1e9 / 8, 1e9


@dataclass(frozen=True)
class Network:
    """The network between nodes.

    Attributes:
        bandwidth: achievable bytes per second of a node with all its NICs, in each direction.
        hop: seconds of latency from node to node.
    """

    bandwidth: float
    hop: float


# By name: the NICs of a node.
NETWORKS = {
    "10g": Network(10 * _GBIT * _SHARE_BETWEEN, _SOCKET_HOP),
    "25g": Network(25 * _GBIT * _SHARE_BETWEEN, _SOCKET_HOP),
    "100g": Network(100 * _GBIT * _SHARE_BETWEEN, _BETWEEN_HOP),
    "200g": Network(200 * _GBIT * _SHARE_BETWEEN, _BETWEEN_HOP),
    "400g": Network(400 * _GBIT * _SHARE_BETWEEN, _BETWEEN_HOP),
    "8x200g": Network(8 * 200 * _GBIT * _SHARE_BETWEEN, _BETWEEN_HOP),  # DGX A100: a NIC for each GPU
    "8x400g": Network(8 * 400 * _GBIT * _SHARE_BETWEEN, _BETWEEN_HOP),  # DGX H100: a NIC for each GPU
}


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU.

    Attributes:
        memory: achievable bytes per second of its memory.
        link: achievable bytes per second to the other GPUs of the node, in each direction.
        gigabytes: 10**9 bytes of memory. PyTorch can use slightly more or less.
        hop: seconds of latency from GPU to GPU.
    """

    memory: float
    link: float
    gigabytes: int
    hop: float = _INSIDE_HOP


def _model(gigabytes: int, memory: float, link: float) -> GpuModel:
    """memory, link: GB/s, the link in one direction."""
    return GpuModel(memory * _GB * _SHARE_MEMORY, link * _GB * _SHARE_INSIDE, gigabytes)


# By NVIDIA's data sheets. NVLink: half of the bandwidth that they state for both directions. PCIe without NVLink: 16
# lanes of generation 4 or 5.
GPUS = {
    "A100-40GB": _model(40, 1555, 300),
    "A100-80GB": _model(80, 2039, 300),
    "H100": _model(80, 3350, 450),
    "H100 PCIe": _model(80, 2000, 64),
    "H100 NVL": _model(94, 3938, 300),
    "H200": _model(141, 4800, 450),
    "GH200": _model(96, 4000, 450),
    "B200": _model(180, 8000, 900),
    "L40S": _model(48, 864, 32),
}


@dataclass(frozen=True)
class Cluster:
    """Equal nodes. gpus: of each node."""

    nodes: int
    gpus: int
    gpu: GpuModel
    network: Network

    @property
    def ranks(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the slowest link of a ring over all ranks; infinite for one rank."""
        inside = self.gpu.link if self.gpus > 1 else math.inf
        between = self.network.bandwidth if self.nodes > 1 else math.inf
        return min(inside, between)

    def ring(self, size: float) -> float:
        """Seconds of a reduce-scatter or an all-gather; an all-reduce takes both. size: bytes of the whole tensor."""
        if self.ranks == 1:
            return 0.0
        crossing = self.nodes - 1
        latency = crossing * self.network.hop + (self.ranks - 1 - crossing) * self.gpu.hop
        return _START + latency + ring_seconds(size, self.ranks, self.bandwidth)

    @property
    def small(self) -> float:
        """Seconds of an all-reduce of a few bytes: up and down a tree, within nodes and between them."""
        if self.ranks == 1:
            return 0.0
        depth = math.ceil(math.log2(self.nodes)), math.ceil(math.log2(self.gpus))
        return _START + 2 * (depth[0] * self.network.hop + depth[1] * self.gpu.hop)


def ring_seconds(size: float, ranks: int, bandwidth: float) -> float:
    """Seconds of sending in a ring, without latency; size: bytes of the whole tensor."""
    return size * (ranks - 1) / ranks / bandwidth
