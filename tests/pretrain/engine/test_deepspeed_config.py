"""DeepSpeed's configuration, and the keys of it that a user may set."""

import pytest
from deepspeed.utils.config import get_timers_config

from data_prep.common.errors import UserError
from pretrain.engine import bucket_size
from pretrain.engine.deepspeed_config import deepspeed_config
from tests.support.configs import least_config


def told(device="cpu", parameters=1000, **sections):
    return deepspeed_config(least_config(**sections), parameters, device)


@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ({"zero_optimisation": {"overlap_comm": True}}, r"Did you mean deepspeed\.zero_optimization\.overlap_comm\?"),
        ({"zero_optimization": {"overlap_com": True}}, r"Did you mean deepspeed\.zero_optimization\.overlap_comm\?"),
        ({"nebula": {}}, r"nebula is not a key that Maskwright hands on to DeepSpeed; .*\.md lists those"),
        ({"zero_optimization": True}, "zero_optimization is not a key that"),
        ({"train_batch_size": 8}, "sets batches, precision, optimizer and offload by the sections train, optim, "),
        ({"bf16": {"enabled": True}}, "deepspeed.bf16.enabled is not a key that"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer.device is not a key"),
        ({"fp16": {"hysteresis": 3}}, "is for train.precision fp16"),
        ({"zero_optimization": {"overlap_comm": True}}, "overlap_comm has no effect with zero.stage 1"),
        ({"zero_optimization": {"sub_group_size": -1}}, "refuses a value. sub_group_size must be 0 or more, not -1"),
        ({"zero_optimization": {"allgather_partitions": "x"}}, "allgather_partitions must be true or false, not 'x'"),
    ],
)
def test_a_senseless_override_is_refused_in_one_sentence(theirs, wanted):
    with pytest.raises(UserError, match=wanted) as caught:
        told(deepspeed=theirs)
    assert "\n" not in str(caught.value)


def test_no_timer_waits_for_the_device():
    """DeepSpeed's is on by default, and synchronizes before each forward pass and after each step."""
    assert not get_timers_config(told()).enabled


def test_overrides_are_laid_over_ours():
    theirs = {"steps_per_print": 5, "zero_optimization": {"stage3_prefetch_bucket_size": 7}}
    values = told(zero={"stage": 2}, deepspeed=theirs)
    assert values["steps_per_print"] == 5
    assert values["zero_optimization"]["stage3_prefetch_bucket_size"] == 7
    assert values["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("zero", [{"stage": 2}, {"stage": 3}, {"stage": 1, "offload": "cpu"}])
def test_sums_of_16_bits_are_fp32_and_sent_in_the_type_of_reduce_dtype(precision, zero, dtype):
    settings = told(train={"precision": precision}, zero=zero | {"reduce_dtype": dtype})
    assert (settings["data_types"]["grad_accum_dtype"], settings["communication_data_type"]) == ("fp32", dtype)
    assert settings[precision]["enabled"]


def test_offload():
    assert "offload_optimizer" not in told()["zero_optimization"]
    values = told(zero={"stage": 3, "offload": "cpu"}, device="cuda")["zero_optimization"]
    assert values["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


def test_buckets_are_no_larger_than_the_model():
    assert bucket_size(5_000_000, "cpu") == 5_000_000
    assert bucket_size(5_000_000, "cuda") == 5_000_000
    assert bucket_size(110_000_000, "cuda") == 27_500_000
    assert bucket_size(10**10, "cuda") == bucket_size(10**10, "cpu") == 500_000_000
