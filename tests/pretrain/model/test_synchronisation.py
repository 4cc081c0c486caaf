"""The model's forward and backward pass on a GPU never waits for the host, as far as a CPU can show it.

Tensors on the device "meta" have shapes and no values: what asks for one (item, nonzero, a boolean index, a copy to the
host) fails there. What mixes them with tensors of the host, as a copy to a GPU does, fails here. A copy of numbers by
`torch.tensor(..., device=...)` is not seen: tests/gpu/test_model.py has the counterpart that sees all.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.model import Encoder
from tests.support.streams import ARCHS, shape_of

SEQ_LEN, ROWS, PREDICTIONS = 32, 3, 9
N = SEQ_LEN * ROWS


class NothingFromTheHost(TorchDispatchMode):
    """Fails where an operation takes a tensor of the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                raise AssertionError(f"{func} takes a tensor of the host")
        return func(*args, **(kwargs or {}))


def stream() -> dict[str, torch.Tensor]:
    sizes = {"tokens": N, "positions": N, "masked_positions": PREDICTIONS, "labels": PREDICTIONS}
    ids = {name: torch.empty(size, dtype=torch.int64, device="meta") for name, size in sizes.items()}
    return ids | {"cu_seqlens": torch.empty(6, dtype=torch.int32, device="meta")}


def step(arch: str, backend: Any, checkpointing: bool = False, **form: Any) -> None:
    shape = shape_of(arch, layers=4, hidden=32, **form)
    model = Encoder(shape, 1e-4, backend).to("meta", torch.bfloat16)
    if checkpointing:
        model.checkpoint_layers()
    batch = stream()
    with NothingFromTheHost():
        model(**batch, seq_len=SEQ_LEN).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("backend", "dropout", "checkpointing"), [("varlen", 0.0, True), ("sdpa", 0.0, False), ("sdpa", 0.1, True)]
)
@pytest.mark.parametrize("arch", ARCHS)
def test_a_step_asks_for_no_value(arch, backend, dropout, checkpointing):
    step(arch, backend, checkpointing, dropout=dropout)


@pytest.mark.parametrize("backend", ["varlen", "sdpa"])
@pytest.mark.parametrize(("arch", "form"), [("bert", {"causal": True}), ("modernbert", {"sep_id": 3})])
def test_a_step_with_another_view_asks_for_no_value(arch, form, backend):
    step(arch, backend, **form)
