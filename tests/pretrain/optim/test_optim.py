"""Parameter groups and optimizers of real encoders, without a split."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pretrain.config import OptimConfig
from pretrain.model import Encoder, EncoderShape
from pretrain.model.padded_model import padded_model
from pretrain.optim import build_optimizer, depth_slices, described, optimizers
from pretrain.optim.optimizers import newton_schulz, orthogonalize_
from pretrain.optim.parameter_fragments import assign_jobs
from pretrain.optim.parameter_groups import parameter_groups
from tests.support.optimizers import EMBEDDING, LR, MATRIX, NAMES, Reference, settings
from tests.support.streams import ARCHS

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 70}
SMALL |= {"pad_token_id": 0, "max_position_embeddings": 16}


def encoder(arch: str = "bert") -> Encoder:
    shape = {"vocab_size": 70, "layers": 2, "hidden": 16, "heads": 2, "intermediate": 24, "max_positions": 12}
    model = Encoder(EncoderShape(**shape, pad_id=0, arch=arch, kv_heads=1 if arch == "eurobert" else None))
    model.initialize(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def kinds(model: nn.Module, kind: str) -> set[str]:
    return {part.name for part in described(model) if part.kind == kind}


@pytest.mark.parametrize("decay_embeddings", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_every_parameter_is_in_one_group_and_matrices_alone_decay(arch, decay_embeddings):
    model = encoder(arch)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = parameter_groups(described(model), OptimConfig(weight_decay=0.1, decay_embeddings=decay_embeddings))
    grouped = [names[parameter] for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(names.values())
    decays = {names[parameter]: group["weight_decay"] for group in groups for parameter in group["params"]}
    matrices = {name for name in decays if re.fullmatch(MATRIX, name)}
    embeddings = {name for name in decays if re.fullmatch(EMBEDDING, name)}
    assert len(matrices) == 4 * 2 + (arch != "eurobert")
    assert len(embeddings) == {"bert": 3, "roberta": 3, "eurobert": 2}.get(arch, 1)
    assert {name for name, decay in decays.items() if decay} == matrices | (embeddings if decay_embeddings else set())
    assert set(decays.values()) == {0.0, 0.1}
    assert kinds(model, "matrix") == matrices
    assert kinds(model, "embedding") == embeddings


def test_matrices_are_split_by_depth_in_their_order():
    parameters = described(encoder())
    whole = {group["kind"]: group["params"] for group in parameter_groups(parameters, OptimConfig())}
    groups = parameter_groups(parameters, OptimConfig(), depths=3)
    assert [group["kind"] for group in groups] == ["matrix", "matrix", "embedding", "vector"]
    assert [len(group["params"]) for group in groups[:2]] == [4, 5]  # a layer, and a layer with the head
    for kind, wanted in whole.items():
        split = [parameter for group in groups if group["kind"] == kind for parameter in group["params"]]
        assert [*map(id, split)] == [*map(id, wanted)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=100), st.integers(1, 9))
def test_slices_are_consecutive_whole_layers(counts, parts):
    layers = [layer for layer, count in enumerate(counts) for _ in range(count)]
    slices = depth_slices(layers, parts)
    parts_of_layers = [layers[part] for part in slices]
    assert [layer for part in parts_of_layers for layer in part] == layers
    assert all(parts_of_layers)
    assert len(parts_of_layers) <= parts
    assert all(part[-1] < following[0] for part, following in pairwise(parts_of_layers))
    ends = [round(len(counts) * (k / parts) ** 1.5) for k in range(1, parts + 1)]
    assert all(min(abs(part[-1] + 1 - end) for end in ends) <= 1 for part in parts_of_layers)


def test_slices_grow_with_depth():
    layers = [layer for layer in range(24) for _ in range(4)] + [23]
    assert [part.stop for part in depth_slices(layers, 8)] == [4, 12, 24, 32, 48, 64, 80, 97]
    assert depth_slices([], 8) == []


def test_the_configuration_does_not_decide_which_parameters_make_a_group():
    model = encoder()
    plain, *others = (
        [[*map(id, group["params"])] for group in parameter_groups(described(model), OptimConfig(**values))]
        for values in ({}, {"name": "muon"}, {"decay_embeddings": True, "weight_decay": 0.0})
    )
    assert others == [plain, plain]


@pytest.mark.parametrize(
    ("config", "matrices", "embeddings", "filters"),
    [
        (  # the projection of its embeddings is a linear layer; its output is tied
            {"model_type": "electra", "embedding_size": 8, **SMALL},
            r".*(query|key|value|dense|embeddings_project)\.weight",
            r".*(word|position|token_type)_embeddings\.weight",
            None,
        ),
        (  # a separate output matrix
            {"model_type": "bert", "tie_word_embeddings": False, **SMALL},
            r".*(query|key|value|dense)\.weight",
            r".*((word|position|token_type)_embeddings|predictions\.decoder)\.weight",
            None,
        ),
        (
            {"model_type": "modernbert", **SMALL, "cls_token_id": 1, "sep_token_id": 2},
            r".*(Wqkv|Wo|Wi|dense)\.weight",
            r".*tok_embeddings\.weight",
            None,
        ),
        (  # convolutions, and a bias with two dimensions
            {"model_type": "convbert", "embedding_size": 16, "head_ratio": 1, **SMALL},
            r".*(query|key|value|dense|conv_kernel_layer|conv_out_layer|embeddings_project)\.weight",
            r".*(word|position|token_type)_embeddings\.weight",
            r".*(depthwise|pointwise)\.weight",
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_groups_of_other_architectures(config, matrices, embeddings, filters):
    model = padded_model({"vocab_size": 70, "pad_token_id": 0, **config}, seed=0)
    names = {name for name, _ in model.named_parameters()}
    merged = {part.name.split(".")[-2]: part.blocks for part in described(model) if len(part.blocks) > 1}
    assert merged == ({"Wqkv": (16, 16, 16), "Wi": (24, 24)} if config["model_type"] == "modernbert" else {})
    assert sum(len(group["params"]) for group in parameter_groups(described(model), OptimConfig())) == len(names)
    for kind, pattern in (("matrix", matrices), ("embedding", embeddings), ("filter", filters)):
        assert kinds(model, kind) == {name for name in names if pattern and re.fullmatch(pattern, name)}, kind
        assert kinds(model, kind) or not pattern
    assert all(re.search(r"norm|bias", name, re.IGNORECASE) for name in kinds(model, "vector"))


def draw(model: nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random gradients, which the parameters then have."""
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients[name] = rng.standard_normal(parameter.shape).astype(np.float32) * np.float32(rng.choice([0.01, 1, 5]))
        parameter.grad = torch.from_numpy(gradients[name].copy())
    return gradients


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("arch", ["bert", "modernbert", "eurobert"])
@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_the_paper(name, arch):
    model, rng = encoder(arch), np.random.default_rng(1)
    reference = Reference(name, weights(model), model.shape.stacked)
    optimizer = build_optimizer(model, OptimConfig(**settings(name)))
    for _ in range(5):
        reference.step(draw(model, rng))
        optimizer.step()
    for key, parameter in model.named_parameters():
        averages = optimizer.state[parameter]["ema"].numpy()
        for result, wanted in ((weights(model)[key], reference.weights), (averages, reference.average)):
            np.testing.assert_allclose(result, wanted[key], rtol=1e-5, atol=2e-4 * LR, err_msg=key)


def test_work_is_dealt_out_evenly():
    assert assign_jobs({"a": 4, "b": 2, "c": 2, "d": 1}, [0, 0, 0]) == {"a": 0, "b": 1, "c": 2, "d": 1}
    assert assign_jobs({"a": 4, "b": 2}, [5, 0]) == {"a": 1, "b": 1}, "processes with whole matrices get fewer"
    even = assign_jobs({str(number): 1 for number in range(12)}, [0] * 4)
    assert sorted(Counter(even.values()).values()) == [3, 3, 3, 3]
    assert assign_jobs({}, [1, 2]) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 24), (64, 16), (16, 64)])
def test_singular_values_become_one_nearly(shape, dtype):
    """And singular vectors stay. The scale equals the scale of AdamW's steps, whose RMS is about 0.2."""
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(3, *shape), full_matrices=False)
    values = torch.linspace(0.2, 1, min(shape)) * torch.tensor([1e-4, 1, 1e3])[:, None]
    matrices = u * values[:, None, :] @ v
    orthogonal = newton_schulz(matrices.to(dtype), steps=5).float()
    values_after = torch.diagonal(u.mT @ orthogonal @ v.mT, dim1=1, dim2=2)
    assert values_after.min() > 0.6
    assert values_after.max() < 1.3
    assert not newton_schulz(torch.zeros(1, *shape), steps=5).any()
    parts = [each.clone() for each in matrices]
    orthogonalize_(parts, 5, dtype)
    torch.testing.assert_close(torch.stack(parts), orthogonal * 0.2 * max(shape) ** 0.5)
    assert 0.15 < torch.stack(parts).square().mean().sqrt() < 0.25


@pytest.mark.parametrize(
    ("weights", "products"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("half", "bfloat16")]
)
def test_matrices_are_multiplied_in_the_precision_of_the_model(weights, products, monkeypatch):
    """DeepSpeed casts the weights after the optimizer is built, and steps on copies of them in fp32."""
    model, seen = encoder(), set()
    optimizer = build_optimizer(model, OptimConfig(**settings("muon")))
    model.to(getattr(torch, weights))

    def see(matrices, steps):
        seen.add(matrices.dtype)
        return newton_schulz(matrices, steps)

    monkeypatch.setattr(optimizers, "newton_schulz", see)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert seen == {getattr(torch, products)}


def everything(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[bytes]:
    """The weights, and the state of an optimizer that has one."""
    states = [sorted(optimizer.state[p].items()) for p in model.parameters()] if optimizer else []
    values = [*model.parameters(), *(value for state in states for _, value in state)]
    return [value.detach().numpy().tobytes() for value in values]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_step_leaves_no_trace(name, bad):
    """For any gradients, also at the first step; later steps are as if it had not happened."""
    ends = []
    for skips in ((), (0, 2)):
        model, rng = encoder(), np.random.default_rng(1)
        model.decoder_bias.data[0] = -0.0
        optimizer = build_optimizer(model, OptimConfig(**settings(name)))
        for step in range(4):
            if step in skips:
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, bad)
                before = everything(model, optimizer if step else None)
                optimizer.found_inf = torch.tensor(1.0)
                optimizer.step()
                assert everything(model, optimizer)[: len(before)] == before
            optimizer.found_inf = torch.tensor(0.0) if skips else None
            draw(model, rng)
            optimizer.step()
        ends.append(everything(model, optimizer))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_a_gradient_stays_and_has_state(name):
    """Some models of transformers have such; evaluation by averages and checkpoints want every parameter's state."""
    model, rng = encoder(), np.random.default_rng(1)
    optimizer = build_optimizer(model, OptimConfig(**settings(name)))
    draw(model, rng)
    unused = model.layers[0].qkv.weight
    unused.grad, before = None, unused.detach().clone()
    optimizer.step()
    assert torch.equal(unused, before)
    assert torch.equal(optimizer.state[unused]["ema"], before)
    assert optimizer.state[unused].keys() == optimizer.state[model.layers[1].qkv.weight].keys()


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw"), ("adamw", "lamb")])
def test_an_optimizer_takes_over_from_another(before, after):
    """It keeps the moments that it knows, begins the others, and drops what it does not read."""
    model, rng = encoder(), np.random.default_rng(1)
    first = build_optimizer(model, OptimConfig(name=before, ema=0.9))
    draw(model, rng)
    first.step()
    second = build_optimizer(model, OptimConfig(name=after))
    second.state.update(first.state)
    draw(model, rng)
    second.step()
    for part in described(model):
        state = second.state[part.parameter]
        if after == "muon" and part.kind == "matrix":
            assert set(state) == {"momentum_buffer"}
        else:
            assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
            assert state["step"] == (1 if before == "muon" and part.kind == "matrix" else 2)
