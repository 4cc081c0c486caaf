"""Gradients and weights inside DeepSpeed: by parameter, without padding, finite."""

import math
from types import SimpleNamespace

import pytest
import torch

from data_prep.common.errors import UserError
from pretrain.engine.deepspeed_state import all_finite, named_gradients, own_share


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
    by_name = dict(named_gradients(engine([0, 2, 4], [*gradients, *pads])))
    assert {name: gradient.tolist() for name, gradient in by_name.items()} == {"p1": [1.0] * 2, "p2": [2.0] * 4}


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


def partitioned(numel: int, ranks: int, rank: int) -> SimpleNamespace:
    """A rank's part, as DeepSpeed lays it out: rounded up, with whatever memory holds after the weight's end."""
    size = -(-numel // ranks)
    whole = torch.full((size * ranks,), math.nan)
    whole[:numel] = torch.arange(numel)
    part = whole[rank * size : (rank + 1) * size].clone()
    part.ds_numel = size  # type: ignore[attr-defined]
    return SimpleNamespace(ds_tensor=part, ds_numel=numel)


def test_shares_are_the_weight_without_its_padding() -> None:
    for numel, ranks in [(10, 3), (9, 3), (1, 4), (5, 4)]:
        shares = [own_share(partitioned(numel, ranks, rank), rank) for rank in range(ranks)]
        assert torch.cat(shares).tolist() == [*range(numel)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_all_finite(dtype, value):
    large = torch.full((7,), min(1e18, torch.finfo(dtype).max)).to(dtype)
    sound = [large, torch.zeros(2, 3, dtype=dtype), -large]
    assert all_finite(sound, torch.device("cpu"))
    assert all_finite([], torch.device("cpu"))
    for tensor in sound:
        spoiled = tensor.clone()
        spoiled.view(-1)[-1] = value
        assert not all_finite([t if t is not tensor else spoiled for t in sound], torch.device("cpu"))
