"""The scaling table of `maskwright plan`: its figures, its two batches, and refusals."""

import pytest

from tests.launchers.commands.test_plan_command import facts, plan, refusal

LARGE = ["configs/bert-large-24h.yaml", "zero.overlap=false", "--vocab-size", "30522", "--gpus-per-node", "8"]
H100 = ["--gpu", "H100", "--mfu", "0.45"]
FIXED = ["--tokens-per-gpu", "16384", "data.seq_len=512", "train.micro_batch_size=32"]
PLAIN, OVERLAPPED = "ZeRO 1, gradients sent in fp32, not overlapped", "ZeRO 1, gradients sent in bf16, overlapped"


def test_bert_large_on_128_gpus():
    """By hand: 32.6 * 10**12 operations at 45% of 989 TFLOP/s; 4 and 2 bytes of each weight at 42.5 GB/s.

    Eight rings each way, with a latency of 8.4 us and 15 hops of 14 us and 112 of 3.4 us.
    """
    latency = 8 * (8.4e-6 + 15 * 14e-6 + 112 * 3.4e-6)
    found = facts(*LARGE, *H100, *FIXED, "--nodes", "1,16", "--network", "400g")
    _, row = found["schemes"][PLAIN]
    assert row["gpus"] == 128
    assert row["tokens"] == 128 * 16384
    assert row["compute"] == pytest.approx(0.0733, rel=0.01)
    assert row["reduce"] == pytest.approx(4 * 335.2e6 * 127 / 128 / 42.5e9 + latency, rel=1e-3)
    assert row["gather"] == pytest.approx(2 * 335.2e6 * 127 / 128 / 42.5e9 + latency, rel=1e-3)
    assert row["efficiency"] == pytest.approx(row["compute"] / row["seconds"])
    assert 0.55 < row["efficiency"] < 0.65
    _, hidden = found["schemes"][OVERLAPPED]
    assert hidden["exposed"] < 0.25 * row["exposed"]
    assert hidden["efficiency"] > 0.9


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


def test_the_plain_table():
    shown = plan(*LARGE, *H100, *FIXED, "--nodes", "1,2", "--network", "25g").stdout
    assert "16,384 tokens per GPU and step, network 25g" in shown
    assert shown.index(PLAIN) < shown.index(OVERLAPPED)
    rows = [line.split() for line in shown.splitlines() if line.split()[:2] in (["1", "8"], ["2", "16"])]
    assert [row[-1][-1] for row in rows] == ["%"] * 4
    assert "assumed, not measured" in " ".join(shown.split())


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
