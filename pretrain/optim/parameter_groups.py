"""Kinds of a model's parameters, and the optimizer's parameter groups."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from pretrain.config import OptimConfig
from pretrain.model import Encoder

Kind = Literal["matrix", "filter", "embedding", "vector"]
_KINDS: tuple[Kind, ...] = ("matrix", "filter", "embedding", "vector")


@dataclass(frozen=True)
class Described:
    """A parameter of a model.

    Attributes:
        kind: "matrix" of a hidden linear layer, "filter" of a convolution, "embedding" (tables, and the vocabulary
            matrix of the output), or "vector" (norms, biases).
        shape: of the whole parameter, also when ZeRO cuts it.
        blocks: number of stacked matrices in it: query, key and value, or gate and up.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    shape: torch.Size
    blocks: int


def described(model: nn.Module) -> list[Described]:
    """The parameters of a model in model order; tied ones appear once."""
    output, merged = _output_weight(model), _merged(model)
    found = []
    for name, parameter in model.named_parameters():
        path, _, own = name.rpartition(".")
        kind = "embedding" if parameter is output else _kind(model.get_submodule(path), own, parameter)
        blocks = merged.get(path.rpartition(".")[2], 1) if kind == "matrix" else 1
        found.append(Described(name, parameter, kind, parameter.shape, blocks))
    return found


def optimizer_order(model: nn.Module) -> list[str]:
    """Names of the parameters in the order of `parameter_groups`, group by group."""
    return [p.name for kind in _KINDS for p in described(model) if p.kind == kind]


def parameter_groups(parameters: list[Described], config: OptimConfig) -> list[dict[str, Any]]:
    """Parameter groups by kind, in the format of `torch.optim`.

    Matrices and filters have weight decay, norms and biases do not, embeddings do if `decay_embeddings`. Groups and
    their order depend only on the model, so a checkpoint fits every configuration.
    """
    decays = {"matrix": True, "filter": True, "embedding": config.decay_embeddings, "vector": False}
    groups = [
        {
            "params": [p.parameter for p in parameters if p.kind == kind],
            "weight_decay": config.weight_decay if decays[kind] else 0.0,
            "kind": kind,
        }
        for kind in _KINDS
    ]
    return [group for group in groups if group["params"]]


def _kind(module: nn.Module, own: str, parameter: nn.Parameter) -> Kind:
    """The kind of a parameter. The module decides first: a linear layer on embeddings is a matrix."""
    if parameter.ndim < 2 or "bias" in own:
        return "vector"
    if isinstance(module, nn.Embedding) or "embed" in own:
        return "embedding"
    return "matrix" if parameter.ndim == 2 else "filter"


def _output_weight(model: nn.Module) -> nn.Parameter | None:
    """The untied output vocabulary matrix of a model of transformers, if there is one."""
    if isinstance(model, Encoder):
        return None
    inner: Any = model.model  # a PaddedModel's
    return getattr(inner.get_output_embeddings(), "weight", None)


def _merged(model: nn.Module) -> dict[str, int]:
    """Number of matrices merged in a linear layer, by the last part of its name; the same in every layer."""
    if isinstance(model, Encoder):
        return {"qkv": 3, "mlp_in": 2} if model.shape.rotary else {"qkv": 3}
    return {"Wqkv": 3, "Wi": 2}  # ModernBERT in transformers
