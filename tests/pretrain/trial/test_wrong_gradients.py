"""The message about wrong gradients names parameter, setting and version, and says what to do."""

from importlib.metadata import version

from pretrain.trial.trial_step import wrong_gradients
from tests.support.configs import least_config

DEEPSPEED = f"DeepSpeed {version('deepspeed')}"


def message(compiled: bool = False, precision: str = "bf16", **zero: object) -> str:
    config = least_config(train={"precision": precision, "compile": compiled}, zero=zero)
    return wrong_gradients({"decoder_bias": 0.02, "layers.3.mlp_out.weight": 0.3141}, config)


def test_the_trial_step_names_the_worst_parameter_and_the_settings() -> None:
    assert message(stage=2, compiled=True) == (
        "Gradients of layers.3.mlp_out.weight (and 1 more) differ from a plain all-reduce by 31% of their norm with "
        f"ZeRO 2, bf16, torch.compile and {DEEPSPEED}. Set zero.stage=1, or use another version of DeepSpeed."
    )


def test_offload_is_named_too() -> None:
    said = message(stage=3, offload="cpu", precision="fp32")
    assert f"with ZeRO 3, offload to the CPU, fp32 and {DEEPSPEED}. Set zero.stage=1 and zero.offload=none, or" in said
