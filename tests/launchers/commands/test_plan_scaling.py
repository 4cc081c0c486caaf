"""The scaling table of `maskwright plan`: its figures, its two batches, and refusals."""

import pytest

from tests.launchers.commands.test_plan_command import facts, plan, refusal

LARGE = ["configs/bert-large-24h.yaml", "zero.overlap=false", "--vocab-size", "30522", "--gpus-per-node", "8"]
H100 = ["--gpu", "H100", "--mfu", "0.45"]
FIXED = ["--tokens-per-gpu", "16384", "data.seq_len=512", "train.micro_batch_size=32"]
PLAIN, OVERLAPPED = "ZeRO 1, gradients sent in fp32, not overlapped", "ZeRO 1, gradients sent in bf16, overlapped"


def test_the_config_s_batch_is_divided_unless_tokens_per_gpu_are_given():
    found = facts(*LARGE, *H100, "--nodes", "1,2,8", "--network", "8x400g")["schemes"][PLAIN]
    assert [row["tokens"] for row in found] == [4096 * 128] * 3
    assert [row["compute"] for row in found] == pytest.approx([found[0]["compute"] / n for n in (1, 2, 8)])
    fixed = facts(*LARGE, *H100, *FIXED, "--nodes", "1,2,8", "--network", "8x400g")["schemes"][PLAIN]
    assert [row["tokens"] for row in fixed] == [16384 * 8 * n for n in (1, 2, 8)]
    assert len({row["compute"] for row in fixed}) == 1


def test_only_the_passes_next_to_the_optimizer_hide_communication():
    """Twice the rows of a micro-batch make two passes; half of the compute is left to hide slow gathers."""
    options = [*LARGE, *H100, *FIXED, "--nodes", "2", "--network", "25g"]
    (whole,) = facts(*options)["schemes"][OVERLAPPED]
    (halves,) = facts(*options, "train.micro_batch_size=16")["schemes"][OVERLAPPED]
    assert halves["compute"] == pytest.approx(whole["compute"])
    last = (4 * 12 + 1) / (24 * 12 + 1)  # four layers and the head's matrix compute after the last gather
    hidden = whole["compute"] / 3 / 2 * (1 - last)
    assert halves["gather"] - whole["gather"] == pytest.approx(hidden, rel=1e-3)


def test_a_given_rate():
    options = [*LARGE, *FIXED, "--nodes", "1", "--network", "10g"]
    (given,) = facts(*options, "--gpu", "H100", "--tflops", "400")["schemes"][PLAIN]
    (share,) = facts(*options, *H100)["schemes"][PLAIN]
    assert given["compute"] * 400 == pytest.approx(share["compute"] * 0.45 * 989)


def test_one_network_is_the_default_and_all_that_is_missing_is_named_at_once():
    assert facts(*LARGE, *H100, "--nodes", "2")["processes"] == 16, "one number of nodes has no table"
    assert "network 400g" in " ".join(plan(*LARGE, *FIXED, *H100, "--nodes", "1,8").output.split())
    said = refusal("configs/bert-base.yaml", "--nodes", "1,8")
    assert "the speed of one GPU" in said
    assert "--gpu with one of" in said
    assert "--vocab-size" in refusal("configs/bert-base.yaml", *H100, "--nodes", "1,8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*H100, "--nodes", "1,x", "--network", "400g"], "--nodes '1,x' is not a number"),
        ([*H100, "--nodes", "0"], "--nodes '0' is not a number"),
        ([*H100, "--nodes", "1,2", "--network", "9g"], "'9g' is not known; write one of 10g, 25g"),
        (["--gpu", "H200", "--nodes", "1,2", "--network", "400g"], "needs the speed of one GPU"),
        (["--tflops", "300", "--nodes", "1,2", "--network", "400g"], "--gpu with one of A100-40GB"),
        ([*H100, "--tflops", "3", "--nodes", "1,2", "--network", "400g"], "--mfu and --tflops both set"),
        (["--gpu", "H100", "--tokens-per-second", "9", "--network", "400g"], "needs the speed of one GPU"),
        ([*H100, "--nodes", "1,3", "--network", "400g"], "24 processes cannot share evenly"),
        ([*H100, "--nodes", "1,2", "--network", "400g", "zero.stage=3", "zero.overlap=true"], "zero.stage 0, 1 and 2"),
        ([*H100, "--nodes", "1,2", "--network", "400g", "zero.offload=cpu", "zero.overlap=true"], "2 without offload"),
    ],
)
def test_what_is_refused(options, said):
    assert said in refusal(*LARGE, *options)
