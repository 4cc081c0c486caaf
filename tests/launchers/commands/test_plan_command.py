"""`maskwright plan` in this process: the micro-batch that fits, the time, the scaling table, and refusals."""

import contextlib
import functools
import json
import re
import shlex

import numpy as np
import pytest
import yaml

from data_prep.common.errors import UserError
from pretrain.run import Journal
from tests.support.datasets import make_dataset
from tests.support.forked import ROOT
from tests.support.in_process import invoke

BASE = ["configs/bert-base.yaml", "--vocab-size", "30522", "--gpus-per-node", "8"]
LARGE = ["configs/bert-large-24h.yaml", "zero.overlap=false", "--vocab-size", "30522", "--gpus-per-node", "8"]
H100 = ["--gpu", "H100", "--mfu", "0.45"]
FIXED = ["--tokens-per-gpu", "16384", "data.seq_len=512", "train.micro_batch_size=32"]
PLAIN, OVERLAPPED = "ZeRO 1, gradients sent in fp32, not overlapped", "ZeRO 1, gradients sent in bf16, overlapped"


plan = functools.partial(invoke, "plan")


def facts(*arguments: object) -> dict:
    return json.loads(plan(*arguments, "--json").stdout)


def refusal(*arguments: object) -> str:
    with pytest.raises(UserError) as refused:
        plan(*arguments)
    return str(refused.value)


def test_without_a_gpu_no_gpu_is_made_up():
    result = plan(*BASE)
    assert "on 8 processes (1 x 8)" in result.stdout
    assert "Whether it fits: name a GPU" in result.stdout
    assert not re.search(r"\b[18] GPU|\D0\.00 GiB", result.stdout)


def test_no_speed_is_made_up():
    for options in ([], ["--gpu", "H100"]):
        assert facts(*BASE, *options)["speed"] == []
        assert "Speed: not known. Give --from RUN" in (said := plan(*BASE, *options).stdout)
        assert all(option in said for option in ("--mfu", "--tflops", "--tokens-per-second"))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ("", None),
        ("train.global_batch_size=64 train.micro_batch_size=8", r"30 ms, .* needs 12 ms .* \(64\), for .* 128, unless"),
        ("train.global_batch_size=64 train.micro_batch_size=1", r"Leave out train\.micro_batch_size \(1\)\."),
        ("train.global_batch_size=64 train.micro_batch_size=8 train.precision=fp32", None),
    ],
)
def test_a_gpu_that_would_wait_for_the_host_is_told(options, advice):
    options = options.split()
    said = facts(*BASE, "--gpu", "H100", *options)["advice"]
    assert said is None if advice is None else re.search(advice, said)
    printed = " ".join(plan(*BASE, "--gpu", "H100", *options).stdout.split())
    assert ("The GPU waits for the host" in printed) is (advice is not None)
    assert facts(*BASE, *options)["advice"] is None


def test_what_does_not_fit_and_what_would():
    planned = facts(*BASE, "--gpu-memory", "8", "train.micro_batch_size=256")
    assert planned["fits"] is False
    as_it_is, checkpointed, *others = planned["choices"]
    assert as_it_is["change"] == "as it is"
    assert 256 > checkpointed["micro_batch_size"] > as_it_is["micro_batch_size"] >= 1
    assert {"zero.stage=2", "zero.stage=3", "zero.offload=cpu"} < {choice["change"] for choice in others}
    for choice in planned["choices"]:
        changes = [] if choice["change"] == "as it is" else choice["change"].split()
        rows = f"train.micro_batch_size={choice['micro_batch_size']}"
        again = facts(*BASE, "--gpu-memory", "8", rows, *changes)
        assert again["fits"]
        assert again["device_bytes"] == choice["device_bytes"] <= planned["usable_bytes"]
        next_larger = next(rows for rows in range(choice["micro_batch_size"] + 1, 257) if 256 % rows == 0)
        assert not facts(*BASE, "--gpu-memory", "8", f"train.micro_batch_size={next_larger}", *changes)["fits"]


def test_nothing_fits_into_too_small_a_gpu():
    planned = facts(*BASE, "--gpu-memory", "2.2")
    assert planned["choices"][0]["micro_batch_size"] is None
    assert "does not fit" in plan(*BASE, "--gpu-memory", "2.2").stdout


def test_a_model_of_transformers_is_counted(tmp_path):
    model = {"model_type": "distilbert", "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 96}
    values = {"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 10}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values | {"model": {"arch": "auto", "config": model}}))
    options = [tmp_path / "c.yaml", "--vocab-size", "1000"]
    planned = facts(*options, "--gpu", "H100")
    assert planned["flops"] is None
    assert planned["fits"] is None
    assert planned["parameters"] > 64 * 1000
    assert planned["speed"] == []
    assert "--tokens-per-second" in refusal(*options, "--gpu", "H100", "--mfu", "0.3")
    given = facts(*options, "--tokens-per-second", "100")
    assert given["speed"][0]["seconds"] == pytest.approx(given["tokens"] / 100)


def test_epochs_and_tokens_of_data(tmp_path):
    """Documents of 20 tokens, three to a row of 66 slots with their specials, fill every slot."""
    make_dataset(tmp_path / "data", [np.full(20, 7)] * 300)
    values = {"run": {"dir": "x"}, "data": {"train": str(tmp_path / "data"), "seq_len": 66}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values | {"train": {"steps": 25, "global_batch_size": 8}}))
    planned = facts(tmp_path / "c.yaml")
    assert planned["epochs"] == {"data": pytest.approx(2.0)}
    assert planned["tokens"] == 25 * 8 * 66
    assert planned["stages"][0]["shares"] == {"data": 1}
    make_dataset(tmp_path / "small", [np.full(20, 7)] * 75)
    both = [f"data.train=[{tmp_path / 'data'}, {tmp_path / 'small'}]", "data.temperature=2"]
    shares = facts(tmp_path / "c.yaml", *both)["stages"][0]["shares"]
    assert shares == pytest.approx({"data": 2 / 3, "small": 1 / 3}, abs=1e-3)
    assert "Rows: data 66.7%, small 33.3%" in plan(tmp_path / "c.yaml", *both).stdout
    whole = facts(tmp_path / "c.yaml", "--vocab-size", "1000")
    assert whole["flops"] > planned["flops"]  # documents do not see each other


@pytest.mark.parametrize(
    ("trained_on", "options", "known"),
    [
        ([], [], True),
        ([], ["--gpu", "H100"], False),
        ([], ["--gpu-memory", "80"], False),
        (["NVIDIA A100-SXM4-80GB"], ["--gpu", "H100"], False),
        (["NVIDIA H100 80GB HBM3"], ["--gpu", "H100"], True),
        (["NVIDIA H100 80GB HBM3"], [], True),
    ],
)
def test_a_speed_of_another_device_is_not_used(tmp_path, trained_on, options, known):
    with contextlib.closing(Journal(tmp_path / "journal.jsonl")) as journal:
        for step in range(1, 21):
            journal.append(step, {"speed/tflops": 0.1})
    gpus = {"gpus": [{"name": name, "memory_gb": 80.0} for name in trained_on]} if trained_on else {}
    (tmp_path / "environment.json").write_text(json.dumps({"hosts": [{"host": "a", "ranks": [0], **gpus}]}))
    result = plan(*BASE, "--from", tmp_path, *options)
    device = trained_on[0] if trained_on else "a CPU"
    assert (f"warning: {tmp_path} was trained on {device}, not on" in result.stderr) is not known
    assert ("Speed: not known" in result.stdout) is not known
    if not known:
        assert "the speed of one GPU (--from" in refusal(*BASE, "--from", tmp_path, "--nodes", "1,2", *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "H1000"], "write one of A100-40GB"),
        (["--mfu", "0.3"], "Name a GPU"),
        (["--mfu", "0.3", "--gpu", "H100", "train.precision=fp32"], "train.precision is fp32. Add"),
        (["--mfu", "0.3", "--tokens-per-second", "3", "--gpu", "H100"], "--mfu and --tokens-per-second both set"),
        (["--from", "/nowhere"], "Cannot read"),
        (["train.global_batch_size=2052", "train.micro_batch_size=1"], "choose a multiple of 8"),
        ([*H100, "--nodes", "1,x", "--network", "400g"], "--nodes '1,x' is not a number"),
        ([*H100, "--nodes", "0"], "--nodes '0' is not a number"),
        ([*H100, "--nodes", "1,2", "--network", "9g"], "'9g' is not known; write one of 10g, 25g"),
        (["--gpu", "H200", "--nodes", "1,2", "--network", "400g"], "needs the speed of one GPU"),
        (["--gpu", "H100", "--tokens-per-second", "9", "--network", "400g"], "needs the speed of one GPU"),
        ([*H100, "--nodes", "1,3", "--network", "400g"], "24 processes cannot share evenly"),
        ([*H100, "--nodes", "1,2", "--network", "400g", "zero.stage=3", "zero.overlap=true"], "zero.stage 0, 1 and 2"),
        ([*H100, "--nodes", "1,2", "--network", "400g", "zero.offload=cpu", "zero.overlap=true"], "2 without offload"),
    ],
)
def test_what_is_refused(options, said):
    assert said in refusal(*BASE, *options)


def test_missing_data_and_runs_without_speed_are_told(tmp_path):
    assert "give --vocab-size" in refusal("configs/bert-base.yaml")
    (tmp_path / "journal.jsonl").write_text("")
    assert "no measured speed" in refusal(*BASE, "--from", tmp_path)


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


@pytest.mark.parametrize("config", ["modernbert-base.yaml", "bert-large-24h.yaml"])
def test_the_examples_in_the_documentation(config):
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    number = next(n for n, block in enumerate(blocks) if f"{config} -" in block)
    _, _, *words = shlex.split(blocks[number].replace("\\\n", " "))
    shown = [line.rstrip() for line in plan(*words).stdout.splitlines()]
    assert shown == blocks[number + 1].splitlines()
