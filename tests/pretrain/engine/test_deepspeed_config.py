"""DeepSpeed's configuration, and the keys of it that a user may set."""

import re

import pytest
from deepspeed.utils.config import get_timers_config

from data_prep.common.errors import UserError
from pretrain.config import Config
from pretrain.engine import bucket_size
from pretrain.engine.deepspeed_config import deepspeed_config


def config_of(**sections):
    least = {"run": {"dir": "runs/x"}, "data": {"train": "data/x"}, "train": {"steps": 10}}
    for name, values in sections.items():
        least[name] = least.get(name, {}) | values
    return Config.model_validate(least)


def told(device="cpu", parameters=1000, **sections):
    return deepspeed_config(config_of(**sections), parameters, device)


def refused(**sections):
    with pytest.raises(UserError) as found:
        told(**sections)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ({"zero_optimisation": {}}, "zero_optimisation is not a key that .* did you mean deepspeed.zero_optimization"),
        ({"zero_optimization": {"overlap_com": True}}, "did you mean deepspeed.zero_optimization.overlap_comm"),
        ({"zero_optimization": {"leaf_module": {"clases": []}}}, "did you mean .*leaf_module.classes"),
        ({"nebula": {}}, "those that are handed on are zero_optimization, bf16,"),
        ({"data_types": {"bufer_dtype": "fp32"}}, "did you mean deepspeed.data_types.buffer_dtype"),
        ({"zero_optimization": True}, "zero_optimization must be a section of keys, not true"),
        ({"train_batch_size": 8}, "is derived from train: of the config"),
        ({"gradient_clipping": 2}, "is derived from optim:"),
        ({"scheduler": {}}, "is derived from schedule:"),
        ({"bf16": {"enabled": True}}, "deepspeed.bf16.enabled is derived from train:"),
        ({"zero_optimization": {"stage": 2}}, "is derived from zero:"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "offload_optimizer.device is derived from"),
        ({"fp16": {"hysteresis": 3}}, "is for train.precision fp16"),
        ({"zero_optimization": {"overlap_comm": True}}, "overlap_comm has no effect with zero.stage 1"),
        ({"zero_optimization": {"sub_group_size": -1}}, "refuses a value. sub_group_size must be 0 or more, not -1"),
        ({"zero_optimization": {"round_robin_gradients": "x"}}, "round_robin_gradients must be true or false, not 'x'"),
        ({"zero_optimization": {"offload_optimizer": {"ratio": 0.5}}}, "refuses .*Stage 3"),
    ],
)
def test_a_senseless_override_is_refused_in_one_sentence(theirs, wanted):
    assert re.search(wanted, refused(deepspeed=theirs))


def test_no_timer_waits_for_the_device():
    """DeepSpeed's is on by default, and synchronizes before each forward pass and after each step."""
    assert not get_timers_config(told()).enabled


def test_overrides_are_laid_over_ours():
    found = told(
        zero={"stage": 2}, deepspeed={"steps_per_print": 5, "zero_optimization": {"stage3_prefetch_bucket_size": 7}}
    )
    assert found["steps_per_print"] == 5
    assert found["zero_optimization"]["stage3_prefetch_bucket_size"] == 7
    assert found["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("zero", [{"stage": 2}, {"stage": 3}, {"stage": 1, "offload": "cpu"}])
def test_sums_of_16_bits_are_fp32(precision, zero):
    found = told(train={"precision": precision}, zero=zero)
    assert found["data_types"]["grad_accum_dtype"] == found["communication_data_type"] == "fp32"
    assert found[precision]["enabled"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_are_sent_in_the_type_of_reduce_dtype(stage):
    precision = {"precision": "fp32"}
    assert told(train=precision, zero={"stage": stage})["communication_data_type"] == "fp32"
    assert told(train=precision, zero={"stage": stage, "reduce_dtype": "bf16"})["communication_data_type"] == "bf16"


def test_a_contradiction_of_reduce_dtype_is_refused():
    zero, theirs = {"stage": 2, "reduce_dtype": "bf16"}, {"communication_data_type": "fp16"}
    assert "communication_data_type fp16 contradicts zero.reduce_dtype bf16" in refused(zero=zero, deepspeed=theirs)
    assert told(zero=zero, deepspeed={"communication_data_type": "bf16"})["communication_data_type"] == "bf16"


def test_offload():
    assert "offload_optimizer" not in told()["zero_optimization"]
    found = told(zero={"stage": 3, "offload": "cpu", "offload_parameters": True}, device="cuda")["zero_optimization"]
    assert found["offload_optimizer"] == found["offload_param"] == {"device": "cpu", "pin_memory": True}


def test_buckets_are_no_larger_than_the_model():
    assert bucket_size(5_000_000, "cpu") == 5_000_000
    assert bucket_size(5_000_000, "cuda") == 5_000_000
    assert bucket_size(110_000_000, "cuda") == 27_500_000
    assert bucket_size(10**10, "cuda") == bucket_size(10**10, "cpu") == 500_000_000
