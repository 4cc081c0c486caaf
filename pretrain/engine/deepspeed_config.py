"""DeepSpeed configuration: derived from the config of a run, then overridden by the allowed keys of `deepspeed:`."""

import difflib
from typing import Any, Literal

from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from pydantic import ValidationError

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.config_files import flat, merged, value_refusal
from pretrain.engine.gradient_buckets import bucket_size, uses_flat_gradients

# The keys of `deepspeed:` that are handed on, and when they have an effect. Maskwright sets the others itself.
_ALLOWED: dict[str, Literal["always", "fp16", "buckets"]] = {
    "steps_per_print": "always",
    "wall_clock_breakdown": "always",
    "memory_breakdown": "always",
    "log_level": "always",
    "zero_optimization.allgather_partitions": "always",
    "zero_optimization.allgather_bucket_size": "always",
    "zero_optimization.sub_group_size": "always",
    "zero_optimization.stage3_prefetch_bucket_size": "always",
    "zero_optimization.stage3_param_persistence_threshold": "always",
    "zero_optimization.stage3_model_persistence_threshold": "always",
    "zero_optimization.stage3_max_live_parameters": "always",
    "zero_optimization.stage3_max_reuse_distance": "always",
    "zero_optimization.stage3_module_granularity_threshold": "always",
    "zero_optimization.offload_optimizer.pin_memory": "always",
    "zero_optimization.offload_optimizer.buffer_count": "always",
    "fp16.loss_scale": "fp16",
    "fp16.initial_scale_power": "fp16",
    "fp16.loss_scale_window": "fp16",
    "fp16.hysteresis": "fp16",
    "fp16.consecutive_hysteresis": "fp16",
    "fp16.min_loss_scale": "fp16",
    # Read by DeepSpeed's own reduction of gradients (stages 2 and 3, offloading), but not by flat_gradients.
    "prescale_gradients": "buckets",
    "gradient_predivide_factor": "buckets",
    "zero_optimization.contiguous_gradients": "buckets",
    "zero_optimization.overlap_comm": "buckets",
    "zero_optimization.reduce_bucket_size": "buckets",
    "zero_optimization.reduce_scatter": "buckets",
    "zero_optimization.use_multi_rank_bucket_allreduce": "buckets",
}
_FIRST_LOSS_SCALE = 12  # power of 2; DeepSpeed's 16 costs some skipped steps at the start


def deepspeed_config(config: Config, parameters: int, device: str) -> dict[str, Any]:
    """The DeepSpeed configuration of a run.

    The two batch sizes only satisfy DeepSpeed's checks: the engine sets at each micro-batch whether a step ends
    there, so their number and shape may vary from step to step.

    Args:
        parameters: of the model.
        device: cpu or cuda.

    Raises UserError if `deepspeed:` has a key that is not handed on or would have no effect, or a value that DeepSpeed
    refuses.
    """
    for key in flat(config.deepspeed):
        _check_key(key, config)
    settings = merged(_ours(config, parameters, device), config.deepspeed)
    try:
        DeepSpeedConfig(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"deepspeed: DeepSpeed refuses a value. {value_refusal(where, problem)}") from None
    except (DeepSpeedConfigError, AssertionError, ValueError, TypeError, AttributeError) as error:
        raise refusal(error) from None
    return settings


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
        zero["offload_optimizer"] = {"device": config.zero.offload, "pin_memory": device == "cuda"}
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


def _check_key(key: str, config: Config) -> None:
    """Refuse a key that is not handed on, or that has no effect in this run."""
    if key not in _ALLOWED:
        near = difflib.get_close_matches(key, _ALLOWED, n=1, cutoff=0.85)
        hint = f"Did you mean deepspeed.{near[0]}?" if near else "docs/configuration.md lists those that it hands on."
        raise UserError(
            f"deepspeed.{key} is not a key that Maskwright hands on to DeepSpeed; it sets batches, precision, "
            f"optimizer and offload by the sections train, optim, schedule and zero. {hint}"
        )
    if _ALLOWED[key] == "fp16" and config.train.precision != "fp16":
        raise UserError(f"deepspeed.{key} is for train.precision fp16; remove it")
    if _ALLOWED[key] == "buckets" and uses_flat_gradients(config):
        raise UserError(
            f"deepspeed.{key} has no effect with zero.stage 1, whose gradients do not go through DeepSpeed; remove it"
        )
