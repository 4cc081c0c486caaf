"""Checksum of a batch on the device: same value as pretrain.data.host_checksum, without waiting for the device."""

import functools

import numpy as np
import torch
from torch import Tensor

from pretrain.data.host_checksum import factors
from pretrain.masking import IGNORED


def device_checksum(tokens: Tensor, positions: Tensor, labels: Tensor, seq_len: int) -> Tensor:
    """The checksum of a micro-batch: int64 scalar on the device.

    Args:
        tokens: [N] int64 after masking; positions, labels: [K] int64, see pretrain.masking.rows.Masked.
    """
    constant, of_token, of_label = _factors(seq_len, tokens.device)
    rows = len(tokens) // seq_len
    used = torch.where(labels == IGNORED, 0, labels + 1).view(rows, -1)
    # int64 wraps around as uint64 does. Only right shifts differ: they must bring in zeros.
    sums = (tokens.view(rows, -1) * of_token).sum(1) + (used * of_label[positions % seq_len].view(rows, -1)).sum(1)
    return _shifted(_mixed(sums + constant), 32).sum()


def _mixed(values: Tensor) -> Tensor:
    values = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    return (values >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)


@functools.lru_cache(maxsize=16)
def _factors(seq_len: int, device: torch.device) -> tuple[int, Tensor, Tensor]:
    constant, of_token, of_label = factors(seq_len)
    token, label = (torch.from_numpy(array.view(np.int64).copy()).to(device) for array in (of_token, of_label))
    return int(constant.view(np.int64)), token, label
