"""All Triton kernels compile for GPUs of NVIDIA and AMD, within the limits of their hardware. That needs no GPU.

The interpreter takes more than the compiler does.
"""

from importlib.util import find_spec

import pytest

from tests.support.triton_process import compiled_for, triton_process

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which there is for Linux alone")

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
