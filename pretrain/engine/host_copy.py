"""A training state in memory, in place of DeepSpeed's files; also as a copy that stays while training continues."""

import copy
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch import Tensor

from pretrain.engine.resharding import load_file


class HostCopies:
    """Copies states, and reuses the memory: only the first copy allocates.

    Memory is copied by storage, so tensors that share memory also share it in the copy. torch.save writes the same
    bytes for the copy as for the state.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._used = 0

    def restart(self) -> None:
        """Release the memory of earlier copies for reuse."""
        self._used = 0

    def copy(self, state: Any) -> Any:
        """Copy `state`: tensors in its dicts, lists and tuples to the CPU, other values with copy.deepcopy."""
        copied = self._walk(state, {}, {})
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copied

    def _walk(self, value: Any, storages: dict[int, Tensor], seen: dict[int, Any]) -> Any:
        """`seen` maps ids to finished copies: an object that occurs twice is copied once, as in copy.deepcopy."""
        if id(value) in seen:
            return seen[id(value)]
        if torch.is_tensor(value):
            copied: Any = self._tensor(value, storages)
            copied.__dict__.update(copy.deepcopy(value.__dict__, seen))  # DeepSpeed numbers tensors by attributes
        elif isinstance(value, dict):
            copied = copy.copy(value)  # keeps the attributes of a state_dict
            copied.update({key: self._walk(inner, storages, seen) for key, inner in value.items()})
        elif type(value) in (list, tuple):
            copied = type(value)(self._walk(inner, storages, seen) for inner in value)
        else:
            copied = copy.deepcopy(value, seen)
        seen[id(value)] = copied
        return copied

    def _tensor(self, value: Tensor, storages: dict[int, Tensor]) -> Tensor:
        storage = value.untyped_storage()
        host = storages.get(storage._cdata)
        if host is None:
            host = storages[storage._cdata] = self._buffer(storage.nbytes(), pinned=value.is_cuda)
            source = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            host.copy_(source, non_blocking=True)
        tensor = torch.empty(0, dtype=value.dtype)
        tensor.set_(host.untyped_storage(), value.storage_offset(), value.shape, value.stride())
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(tensor, value.requires_grad)
        return tensor.requires_grad_(value.requires_grad)

    def _buffer(self, size: int, pinned: bool) -> Tensor:
        if self._used == len(self._buffers) or self._buffers[self._used].numel() != size:
            self._buffers[self._used :] = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned)]
        self._used += 1
        return self._buffers[self._used - 1]


class StatesInMemory(TorchCheckpointEngine):
    """The states that DeepSpeed would write, by path, in place of its files."""

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[str, Any] = {}
        self._copy, self._host = False, HostCopies()

    def restart(self, copy: bool) -> None:
        self._copy = copy
        self._host.restart()

    def take(self) -> dict[str, Any]:
        """Not kept here: what DeepSpeed has gathered for a checkpoint goes when it is written."""
        states, self._states = self._states, {}
        return states

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def save(self, state_dict: Any, path: str) -> None:
        self._states[path] = self._host.copy(state_dict) if self._copy else state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return load_file(Path(path))
