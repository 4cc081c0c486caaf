"""Memory of the tensors that a piece of code creates, on any device, also "meta"."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Under it, the bytes of living tensors are counted; a model's weights are not.

    peak: the largest sum. largest: elements of the largest tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self._live: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.peak = self.largest = 0

    @property
    def bytes(self) -> int:
        """Of the tensors that live now."""
        return sum(self._live.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._weights:
                    self._live[storage] = storage.nbytes()
                    self.largest = max(self.largest, storage.nbytes() // tensor.element_size())
        self.peak = max(self.peak, self.bytes)
        return out
