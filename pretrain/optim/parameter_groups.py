"""Kinds of a model's parameters, and the optimizer's parameter groups."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from pretrain.config import OptimConfig
from pretrain.model import Encoder
from pretrain.optim.depth_slices import depth_slices

ParameterKind = Literal["matrix", "filter", "embedding", "vector"]
_KINDS: tuple[ParameterKind, ...] = ("matrix", "filter", "embedding", "vector")


@dataclass(frozen=True)
class Described:
    """A parameter of a model.

    kind: "matrix" of a hidden linear layer, "filter" of a convolution, "embedding" (tables, and the vocabulary matrix
        of the output), or "vector" (norms, biases).
    shape: of the whole parameter, also when ZeRO cuts it.
    blocks: rows of each matrix that is stacked in it: query, key and value, or gate and up.
    layer: the first number in the name; without one, the layer of the parameter before.
    """

    name: str
    parameter: nn.Parameter
    kind: ParameterKind
    shape: torch.Size
    blocks: tuple[int, ...]
    layer: int


def described(model: nn.Module) -> list[Described]:
    """The parameters of a model in model order; tied ones appear once."""
    output: nn.Parameter | None = None
    merged = {"Wqkv": (1, 1, 1), "Wi": (1, 1)}  # shares of a linear layer's matrices: ModernBERT in transformers
    if isinstance(model, Encoder):
        merged = model.shape.stacked
    else:
        padded: Any = model  # a PaddedModel; its vocabulary matrix may be untied
        output = getattr(padded.model.get_output_embeddings(), "weight", None)
    parameters: list[Described] = []
    layer = 0
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        kind = "embedding" if parameter is output else _kind(model.get_submodule(path), last, parameter)
        shares = merged.get(path.rpartition(".")[2], (1,)) if kind == "matrix" else (1,)
        blocks = tuple(parameter.shape[0] * share // sum(shares) for share in shares)
        layer = next((int(part) for part in name.split(".") if part.isdigit()), layer)
        parameters.append(Described(name, parameter, kind, parameter.shape, blocks, layer))
    return parameters


def optimizer_order(model: nn.Module) -> list[str]:
    """Names of the parameters in the order of `parameter_groups`, group by group."""
    return [p.name for kind in _KINDS for p in described(model) if p.kind == kind]


def parameter_groups(parameters: list[Described], config: OptimConfig, depths: int = 1) -> list[dict[str, Any]]:
    """Parameter groups by kind, in the format of `torch.optim`.

    Matrices and filters have weight decay, norms and biases do not, embeddings do if `decay_embeddings`. Groups and
    their order depend only on the model and `depths`, so a checkpoint fits every configuration.

    Args:
        depths: split the matrices into at most so many groups, first layers first (`depth_slices`).
    """
    decays = {"matrix": True, "filter": True, "embedding": config.decay_embeddings, "vector": False}
    by_kind = {kind: [p for p in parameters if p.kind == kind] for kind in _KINDS}
    split = [
        (kind, [p.parameter for p in held[part]])
        for kind, held in by_kind.items()
        for part in depth_slices([p.layer for p in held], depths if kind == "matrix" else 1)
    ]
    return [
        {"params": params, "weight_decay": config.weight_decay if decays[kind] else 0.0, "kind": kind}
        for kind, params in split
    ]


def _kind(module: nn.Module, last: str, parameter: nn.Parameter) -> ParameterKind:
    """The kind of a parameter. The module decides first: a linear layer on embeddings is a matrix."""
    if parameter.ndim < 2 or "bias" in last:
        return "vector"
    if isinstance(module, nn.Embedding) or "embed" in last:
        return "embedding"
    return "matrix" if parameter.ndim == 2 else "filter"
