"""DeepSpeed configuration: derived from the config of a run, then overridden by the checked keys of `deepspeed:`."""

import difflib
from collections.abc import Iterable
from typing import Any

from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from pydantic import BaseModel, ValidationError

from data_prep.common.errors import UserError
from pretrain.config import Config, merged, model_in, value_refusal
from pretrain.engine.gradient_buckets import bucket_size, uses_flat_gradients

# What Maskwright derives from its own sections, and from which.
_OURS = {
    "train_batch_size": "train",
    "train_micro_batch_size_per_gpu": "train",
    "gradient_accumulation_steps": "train",
    "managed_gradient_accumulation": "train",
    "gradient_clipping": "optim",
    "optimizer": "optim",
    "scheduler": "schedule",
    "bf16.enabled": "train",
    "fp16.enabled": "train",
    "fp16.auto_cast": "train",
    "data_types.grad_accum_dtype": "train",
    "data_types.param_dtype": "train",
    "zero_optimization.stage": "zero",
    "zero_optimization.offload_optimizer.device": "zero",
    "zero_optimization.offload_param.device": "zero",
    "zero_optimization.cpu_offload": "zero",
    "zero_optimization.cpu_offload_param": "zero",
}
# Read by DeepSpeed's own reduction of gradients (stages 2 and 3, offloading), but not by flat_gradients.
_OF_GRADIENT_BUCKETS = (
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.overlap_comm",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.reduce_scatter",
    "zero_optimization.use_multi_rank_bucket_allreduce",
)
_SECTIONS: dict[str, type[BaseModel] | tuple[str, ...]] = {
    "zero_optimization": DeepSpeedZeroConfig,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "data_types": ("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"),
}
_SCALARS = (
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "steps_per_print",
    "wall_clock_breakdown",
    "memory_breakdown",
    "log_level",
)
_FIRST_LOSS_SCALE = 12  # power of 2; DeepSpeed's 16 costs some skipped steps at the start


def deepspeed_config(config: Config, parameters: int, device: str) -> dict[str, Any]:
    """The DeepSpeed configuration of a run.

    The two batch sizes only satisfy DeepSpeed's checks: the engine sets at each micro-batch whether a step ends
    there, so their number and shape may vary from step to step.

    Args:
        parameters: of the model.
        device: cpu or cuda.

    Raises:
        UserError: if `deepspeed:` has a key that DeepSpeed does not know, that Maskwright derives from its own
            sections, or that would have no effect; or a value that DeepSpeed refuses.
    """
    _check_names(config.deepspeed)
    _check_meaning(config)
    found = merged(_ours(config, parameters, device), config.deepspeed)
    try:
        DeepSpeedConfig(found)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"deepspeed: DeepSpeed refuses a value. {value_refusal(where, problem)}") from None
    except (DeepSpeedConfigError, AssertionError, ValueError, TypeError, AttributeError) as error:
        raise refusal(error) from None
    return found


def refusal(error: Exception) -> UserError:
    """The reason why DeepSpeed refuses a configuration, on one line."""
    return UserError(f"deepspeed: DeepSpeed refuses the configuration: {str(error).splitlines()[0]}")


def _ours(config: Config, parameters: int, device: str) -> dict[str, Any]:
    buckets = not uses_flat_gradients(config)
    zero: dict[str, Any] = {
        "stage": config.zero.stage,
        "contiguous_gradients": buckets,
        "overlap_comm": buckets and device == "cuda",
        "reduce_bucket_size": bucket_size(parameters, device),
    }
    if config.zero.offload != "none":
        pinned = {"pin_memory": device == "cuda"}
        zero["offload_optimizer"] = pinned | {"device": config.zero.offload}
        if config.zero.offload_parameters:
            zero["offload_param"] = pinned | {"device": "cpu"}
    ours: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.grad_clip,
        # The engine looks itself whether gradients are finite, for every stage and precision.
        "bf16": {"enabled": config.train.precision == "bf16", "check_grad_overflow": False},
        "fp16": {"enabled": config.train.precision == "fp16", "initial_scale_power": _FIRST_LOSS_SCALE},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # PyTorch's fused AdamW is nearly as fast, and needs no compiler
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},  # it waits for the device before each forward pass
        "communication_data_type": config.zero.reduce_dtype,
    }
    if config.train.precision != "fp32" and buckets:  # sums over micro-batches, as flat_gradients has them
        ours["data_types"] = {"grad_accum_dtype": "fp32"}
    return ours


def _check_names(theirs: dict[str, Any]) -> None:
    _check_known(theirs, [*_SECTIONS, *_SCALARS, *(key for key in _OURS if "." not in key)], "deepspeed")
    for section, known in _SECTIONS.items():
        if section not in theirs:
            continue
        if not isinstance(theirs[section], dict):
            raise UserError(value_refusal(f"deepspeed.{section}", {"type": "dict_type", "input": theirs[section]}))
        if isinstance(known, tuple):
            _check_known(theirs[section], known, f"deepspeed.{section}")
        else:
            _check_model(theirs[section], known, f"deepspeed.{section}")


def _check_model(values: dict[str, Any], model: type[BaseModel], place: str) -> None:
    fields = {name: field for key, field in model.model_fields.items() for name in (key, field.alias) if name}
    _check_known(values, fields, place)
    for name, value in values.items():
        inner = model_in(fields[name].annotation)
        if inner is not None and isinstance(value, dict):
            _check_model(value, inner, f"{place}.{name}")


def _check_known(values: Iterable[str], known: Iterable[str], place: str) -> None:
    names = [*known]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
            hint = f"did you mean {place}.{near[0]}?" if near else f"those that are handed on are {', '.join(names)}"
            raise UserError(f"{place}.{name} is not a key that Maskwright hands on to DeepSpeed; {hint}")


def _check_meaning(config: Config) -> None:
    """Refuse keys that contradict Maskwright's own sections, and keys without effect."""
    for key, section in _OURS.items():
        if _has(config.deepspeed, key):
            raise UserError(f"deepspeed.{key} is derived from {section}: of the config; remove it and set that instead")
    for precision in ("bf16", "fp16"):
        if precision in config.deepspeed and config.train.precision != precision:
            raise UserError(f"deepspeed.{precision} is for train.precision {precision}; remove it")
    theirs = config.deepspeed.get("communication_data_type", "bf16")
    if config.zero.reduce_dtype == "bf16" and theirs not in ("bf16", "bfloat16"):
        raise UserError(f"deepspeed.communication_data_type {theirs} contradicts zero.reduce_dtype bf16; remove it")
    for key in _OF_GRADIENT_BUCKETS:
        if uses_flat_gradients(config) and _has(config.deepspeed, key):
            raise UserError(
                f"deepspeed.{key} has no effect with zero.stage 1, whose gradients do not go through DeepSpeed; remove "
                "it, or set zero.reduce_dtype for communication_data_type"
            )


def _has(values: Any, key: str) -> bool:
    first, _, rest = key.partition(".")
    return isinstance(values, dict) and first in values and (not rest or _has(values[first], rest))
