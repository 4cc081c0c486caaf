"""Faster kernels compared with the plain step for real, on a CPU in Triton's interpreter: right, wrong, broken ones."""

import shutil

import pytest
import torch
import torch.distributed as dist

from pretrain.kernels import Candidates, FastPath, KernelChoice
from pretrain.model import Encoder
from pretrain.trial.path_comparison import agreed_path, tolerance
from tests.support import path_cases
from tests.support.ranks import check_on_ranks
from tests.support.triton_process import needs_triton

pytestmark = needs_triton


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("arch", ["bert", "modernbert"])
def test_right_kernels_agree(interpreter, arch, precision):
    assert interpreter(path_cases.problem, arch, precision) is None


def test_a_wrong_kernel_is_named_by_what_differs(interpreter):
    said = interpreter(path_cases.problem, "bert", "fp32", "tanh")
    assert "differs by" in said
    assert "from the plain step, more than 1e-05" in said


def test_where_rounding_errors_grow_kernels_may_be_as_inexact_as_the_plain_step(interpreter):
    """As with trained weights of shallow models. A wrong kernel is further from fp32."""
    assert "differs by" in interpreter(path_cases.difference, 100)
    assert interpreter(path_cases.problem, "bert", "bf16", "", path_cases.KERNELS, False, 100) is None
    for scale in (1, 100):
        said = interpreter(path_cases.problem, "bert", "bf16", "relu", path_cases.KERNELS, False, scale)
        assert "differs by" in said


def test_a_kernel_that_raises_is_a_problem_in_one_line(interpreter):
    assert interpreter(path_cases.problem, "bert", "fp32", "raises") == "RuntimeError: PTX error more"
    assert interpreter(path_cases.problem, "bert", "fp32", "memory") == "OutOfMemoryError: CUDA out of memory"


@pytest.mark.parametrize("known", [False, True])
def test_a_kernel_of_adamw_that_fails_means_the_plain_path(interpreter, known):
    plain = FastPath(False, False)
    said = "Triton: the kernel of AdamW: RuntimeError: PTX error more"
    assert interpreter(path_cases.reason, "adamw raises", known) == (plain, said)
    path, said = interpreter(path_cases.reason, "adamw", known)
    assert path == plain
    assert "Triton: a step of AdamW differs by " in said
    path, _ = interpreter(path_cases.reason, "adamw raises", known, "lamb")
    assert path == path_cases.KERNELS, "it has no use for it"


def test_a_known_path_need_only_work(interpreter):
    assert interpreter(path_cases.problem, "bert", "fp32", "tanh", path_cases.KERNELS, True) is None
    assert interpreter(path_cases.problem, "bert", "fp32", "raises", path_cases.KERNELS, True)


def test_a_plain_step_without_memory_is_compared_on_fewer_rows(interpreter):
    assert interpreter(path_cases.rows_compared, 4) == (None, "4 rows")
    assert interpreter(path_cases.rows_compared, 1) == (None, "1 of 4 rows, as memory is short for a plain step")
    said, _ = interpreter(path_cases.rows_compared, 0)
    assert said == "memory does not suffice for a plain step of one row"


def test_rows_are_cut_with_their_predictions(interpreter):
    """Documents stay in their rows, so that a row's loss is the same with and without the others."""
    one, three, four = interpreter(path_cases.losses_of_rows)
    assert one == pytest.approx(2 * four / 7, rel=0.2)
    assert three == pytest.approx(5 * four / 7, rel=0.2)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs g++ on a CPU")
def test_a_compiled_model_agrees(interpreter):
    assert interpreter(path_cases.problem, "bert", "fp32", "", path_cases.COMPILED) is None


def no_compiler(model: Encoder, shapes: int) -> None:
    raise RuntimeError("no compiler on this host")


def chosen(model: Encoder) -> KernelChoice:
    """The choice where a GPU would try compiled graphs."""
    settings = path_cases.config("fp32", fused_kernels=False)
    choice = agreed_path(model, settings, Candidates.of(settings, "cuda"), path_cases.inputs())
    assert model.is_compiled == choice.path.compiled
    return choice


def check_ranks() -> None:
    """torch.compile leaves functions as they are: it would take seconds to capture graphs."""
    torch.compile = lambda function, **_: function  # type: ignore[assignment]
    model = path_cases.encoder("bert", "fp32")
    assert chosen(model) == KernelChoice(FastPath(False, True), "agrees with the plain step on 4 rows")
    if dist.get_rank() == 1:
        Encoder.compile_graph = no_compiler  # type: ignore[method-assign]
    reason = "compiled: RuntimeError: no compiler on this host (rank 1)"
    assert chosen(model) == KernelChoice(FastPath(False, False), reason)


def test_all_ranks_choose_the_same_and_a_failure_on_one_falls_back_on_all():
    check_on_ranks(check_ranks, 2)


def test_limits_follow_the_precision():
    assert tolerance("bf16", 12) == pytest.approx(0.217, rel=0.01)
    assert tolerance("fp16", 12) == pytest.approx(0.0271, rel=0.01)
    assert tolerance("fp32", 12) == 1e-5
    assert tolerance("bf16", 48) == pytest.approx(2 * tolerance("bf16", 12))
