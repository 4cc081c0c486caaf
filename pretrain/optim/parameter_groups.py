"""What each parameter of a model is, and the groups that an optimizer treats alike."""

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
        shape: as a whole, also where ZeRO takes the parameter apart.
        blocks: matrices that it consists of, one below the other: query, key and value, or gate and up.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    shape: torch.Size
    blocks: int


def described(model: nn.Module) -> list[Described]:
    """The parameters of a model, tied ones once, in its own order."""
    output, merged = _output_weight(model), _merged(model)
    found = []
    for name, parameter in model.named_parameters():
        path, _, own = name.rpartition(".")
        kind = "embedding" if parameter is output else _kind(model.get_submodule(path), own, parameter)
        blocks = merged.get(path.rpartition(".")[2], 1) if kind == "matrix" else 1
        found.append(Described(name, parameter, kind, parameter.shape, blocks))
    return found


def optimizer_order(model: nn.Module) -> list[str]:
    """Names of the parameters as `parameter_groups` has them, one group after the other."""
    return [p.name for kind in _KINDS for p in described(model) if p.kind == kind]


def parameter_groups(parameters: list[Described], config: OptimConfig) -> list[dict[str, Any]]:
    """Parameters by kind, as `torch.optim` takes them: matrices and filters with weight decay, norms and biases
    without, embeddings with if `decay_embeddings`.

    The model alone decides which parameters make a group, and their order: a checkpoint fits every configuration.
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
    """By the module first: a linear layer on top of embeddings is a matrix, whatever its name."""
    if parameter.ndim < 2 or "bias" in own:
        return "vector"
    if isinstance(module, nn.Embedding) or "embed" in own:
        return "embedding"
    return "matrix" if parameter.ndim == 2 else "filter"


def _output_weight(model: nn.Module) -> nn.Parameter | None:
    """The vocabulary matrix of the output, where a model of transformers has one that is not tied."""
    if isinstance(model, Encoder):
        return None
    inner: Any = model.model  # a PaddedModel's
    return getattr(inner.get_output_embeddings(), "weight", None)


def _merged(model: nn.Module) -> dict[str, int]:
    """Linear layers, by the last part of their names, whose matrix stands for several; the same in every layer."""
    if isinstance(model, Encoder):
        return {"qkv": 3, "mlp_in": 2} if model.shape.rotary else {"qkv": 3}
    return {"Wqkv": 3, "Wi": 2}  # ModernBERT, as transformers has it
