"""The kernels of layers within a compiled encoder, on a CPU: one graph, all launches, the gradients of plain torch.

tests/gpu/test_fast_path.py compares them with the code that torch generates for a GPU.
"""

from importlib.util import find_spec

import pytest

from tests.support.triton_process import graph_compared, triton_process

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which there is for Linux alone")


@pytest.fixture(scope="module")
def process():
    with triton_process(interpret=False) as started:
        yield started


@pytest.mark.parametrize(
    ("arch", "checkpointing"),
    [
        ("bert", True),
        ("modernbert", False),
        pytest.param("bert", False, marks=pytest.mark.slow),
        pytest.param("modernbert", True, marks=pytest.mark.slow),
    ],
)
def test_kernels_and_torch_compile_share_a_graph(process, arch, checkpointing):
    found = process.submit(graph_compared, arch, checkpointing).result()
    alone, within = found.launches
    assert sum(alone.values()) > 15
    assert within == alone or checkpointing
    assert within.keys() == alone.keys()
    assert found.graphs == 1
    assert found.problems == [None, None]
