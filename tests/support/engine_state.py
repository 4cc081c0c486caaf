"""Weights and optimizer state of an engine, whole on every rank."""

from collections.abc import Callable

import numpy as np
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from pretrain.engine import Engine


def full_state(
    engine: Engine, key: str | None, has_key: Callable[[str], bool] = lambda name: True
) -> dict[str, np.ndarray]:
    """The fp32 weights, or the state `key` of the parameters that have it, as DeepSpeed's own accessors give it."""
    inner = engine.deepspeed
    stage = inner.zero_optimization_stage()
    if stage in (1, 2) and key:
        # DeepSpeed links the moments to the parameters after stepping the first group, when the second has none yet.
        inner.optimizer._hp_optimizer_states_linked = False
        inner.optimizer._lazy_init_hp_params_optimizer_state()
    found = {}
    for name, parameter in inner.module.named_parameters():
        if not has_key(name):
            continue
        if stage == 0:
            value = inner.basic_optimizer.state[parameter][key] if key else parameter
        else:
            value = safe_get_full_optimizer_state(parameter, key) if key else safe_get_full_fp32_param(parameter)
        found[name] = value.detach().float().numpy().copy()
    return found
