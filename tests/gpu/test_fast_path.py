"""The choice of kernels on a GPU: the fast path agrees with the plain step, and its step does not make the host wait.

The names of cases that compile have "compiled" in them, see conftest.
"""

import pytest
import torch

from pretrain.kernels import Candidates, FastPath, FlashAttention
from pretrain.model import Encoder, use_path
from pretrain.trial.path_comparison import PathComparison
from tests.support import path_cases

KERNELS, BOTH = FastPath(True, False), FastPath(True, True)


def on_gpu(arch: str, precision: str) -> tuple[Encoder, dict]:
    model = path_cases.encoder(arch, precision).cuda()
    given = path_cases.inputs()
    return model, {name: value.cuda() if torch.is_tensor(value) else value for name, value in given.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch", ["bert", "modernbert"])
def test_kernels_agree(arch, precision):
    model, inputs = on_gpu(arch, precision)
    assert PathComparison(model, path_cases.config(precision), inputs).problem_of(KERNELS) is None


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("arch", ["bert", "modernbert"])
def test_kernels_in_a_compiled_graph_agree(arch, checkpointing):
    """In fp32, where the limit is 1e-5. tests/pretrain/kernels/test_compile.py has the graph without generated code."""
    torch._dynamo.reset()
    model, inputs = on_gpu(arch, "fp32")
    if checkpointing:
        model.checkpoint_layers()
    assert PathComparison(model, path_cases.config("fp32"), inputs).problem_of(BOTH) is None
    assert model.is_compiled


@pytest.mark.parametrize("arch", ["bert", "modernbert"])
def test_auto_picks_the_kernels(arch):
    model, inputs = on_gpu(arch, "bf16")
    settings = path_cases.config("bf16")
    comparison = PathComparison(model, settings, inputs)
    flash = FlashAttention.installed(torch.cuda.get_device_capability()[0]).version
    choice = Candidates.of(settings, "cuda", flash).choose(comparison.problem_of, lambda: comparison.extent)
    assert choice.path._replace(flash=2) == KERNELS, choice.reason


@pytest.mark.parametrize("path", [KERNELS, pytest.param(BOTH, id="compiled")])
def test_the_host_does_not_wait_afterwards(path):
    model, inputs = on_gpu("bert", "bf16")
    settings = path_cases.config("bf16")
    assert PathComparison(model, settings, inputs).problem_of(path) is None
    use_path(model, settings, path)
    model(**inputs).loss.backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(**inputs).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
