"""Gradients by parameter: as DeepSpeed keeps them, and refused if it keeps them in another way."""

from types import SimpleNamespace

import pytest
import torch

from data_prep.common.errors import UserError
from pretrain.engine.deepspeed_state import named_gradients


def engine(sizes: list[int], gradients: list[torch.Tensor]) -> SimpleNamespace:
    """An engine of ZeRO 1 whose rank holds `sizes` elements of its parameters, and these gradients."""
    names, parameters = {}, []
    for number, size in enumerate(sizes):
        parameter = torch.nn.Parameter(torch.zeros(4))
        parameter._hp_mapping = SimpleNamespace(hp_fragment_address=SimpleNamespace(numel=size)) if size else None
        names[parameter] = f"p{number}"
        parameters.append(parameter)
    optimizer = SimpleNamespace(bit16_groups=[parameters], averaged_gradients={0: gradients}, cpu_offload=False)
    return SimpleNamespace(optimizer=optimizer, zero_optimization_stage=lambda: 1, param_names=names)


def padding(size: int, marked: bool) -> torch.Tensor:
    pad = torch.full((size,), 9.0)
    if marked:
        pad._zero_padding = True
    return pad


@pytest.mark.parametrize("pads", [[], [padding(3, marked=True)], [padding(3, marked=False)]])
def test_gradients_belong_to_the_parameters_of_the_rank(pads):
    gradients = [torch.full((2,), 1.0), torch.full((4,), 2.0)]
    found = dict(named_gradients(engine([0, 2, 4], [*gradients, *pads])))
    assert {name: gradient.tolist() for name, gradient in found.items()} == {"p1": [1.0] * 2, "p2": [2.0] * 4}


@pytest.mark.parametrize(
    "sizes",
    [
        [2],  # a gradient is missing
        [4, 2],  # the order is another
        [2, 4, 3, 3],  # two are too many
        [3, 2, 4],  # padding stands first
    ],
)
def test_other_gradients_than_those_of_the_rank_are_refused(sizes):
    held = engine([2, 4], [torch.ones(size) for size in sizes])
    with pytest.raises(UserError, match=r"DeepSpeed .* in an unknown order .*: install DeepSpeed 0\.19"):
        list(named_gradients(held))
