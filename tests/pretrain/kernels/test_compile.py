"""All Triton kernels compile for GPUs of NVIDIA and AMD, within the limits of their hardware. That needs no GPU.

The interpreter takes more than the compiler does. Within a compiled encoder, kernels of layers are in its one graph:
tests/gpu/test_fast_path.py compares them with the code that torch generates for a GPU.
"""

from importlib.util import find_spec

import pytest

from tests.support.triton_process import compiled_for, graph_compared, needs_triton, triton_process

pytestmark = needs_triton

KIB = 1024
MOST_THREADS = 1024  # of a program, on all GPUs
HOPPER = 90
LANES = {"cuda": 32, "hip": 64}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        with triton_process(interpret=False) as started:
            yield started


@pytest.mark.parametrize(
    ("backend", "architecture"),
    [
        pytest.param("cuda", 80, marks=pytest.mark.slow),
        ("cuda", HOPPER),
        pytest.param("hip", "gfx90a", marks=pytest.mark.slow),
        ("hip", "gfx942"),
    ],
)
def test_all_kernels_compile(process, backend, architecture):
    if find_spec(f"triton.backends.{'amd' if backend == 'hip' else 'nvidia'}") is None:
        pytest.skip(f"this Triton has no backend for {backend}")
    made, names, uses = process.submit(compiled_for, backend, architecture, LANES[backend]).result()
    assert len(names) >= 10
    assert not names - _reached({kernel.name for kernel in made}, uses), "tests/support/compiled_kernels.py lacks some"
    for kernel in made:
        assert kernel.code > 0, kernel
        assert kernel.threads <= MOST_THREADS, kernel
        assert kernel.shared <= 48 * KIB, kernel  # so that several programs share a multiprocessor
        if architecture == HOPPER:
            assert kernel.registers > 0, kernel
            assert kernel.spilled == 0, kernel
            assert kernel.product in (None, True), kernel
    assert architecture != HOPPER or sum(kernel.product is True for kernel in made) >= 8


def _reached(launched: set[str], uses: dict[str, set[str]]) -> set[str]:
    """The functions of Triton that these kernels call, themselves included."""
    reached, new = set(), launched
    while new:
        reached |= new
        called = set().union(*(uses[name] for name in new))
        new = {name for name in uses if name.split(".")[1] in called} - reached
    return reached


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
