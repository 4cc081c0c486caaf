"""The first config for a text and a machine."""

import itertools
from dataclasses import replace

import pytest
import yaml

from pretrain.config import Config
from pretrain.config_files import load_config
from pretrain.planning import GpuMemory, Machine, Planner, choose_first_config, gpu_tflops, host_advice
from pretrain.planning.host_time import gpu_seconds, host_seconds

LAPTOP = Machine(cores=2, memory=16 << 30, gpus=(), tflops=0.1)
SERVER = Machine(cores=64, memory=256 << 30, gpus=("NVIDIA H100 80GB HBM3",) * 8, tflops=8 * 989.0)


@pytest.mark.parametrize("machine", [LAPTOP, SERVER], ids=["laptop", "server"])
@pytest.mark.parametrize("tokens", [2_000, 500_000, 10**9])
@pytest.mark.parametrize("minutes", [0.1, 2, 60])
def test_the_config_loads_and_keeps_the_limits(machine, tokens, minutes, tmp_path):
    first = choose_first_config("mine", tokens, tokens, 10**4, machine, minutes)
    file = tmp_path / "mine.yaml"
    file.write_text(first.text(["a note", ""]))
    config = load_config(file)
    assert yaml.safe_load(file.read_text()) == first.values
    assert config.train.steps >= 100
    if config.train.steps > 100:
        assert first.minutes <= minutes
        assert first.epochs <= 40
    assert config.train.global_batch_size % machine.processes == 0
    assert config.train.precision == ("bf16" if machine.gpus else "fp32")
    assert config.schedule.warmup_steps < config.train.steps
    assert config.eval.every_steps <= config.train.steps


def test_more_time_or_speed_gives_more_training_or_a_larger_model():
    def work(minutes, tflops):
        first = choose_first_config("mine", 10**9, 10**9, 10**6, replace(LAPTOP, tflops=tflops), minutes)
        return first.size.weights, first.tokens

    for figures in ([work(minutes, 0.1) for minutes in (1, 10, 600)], [work(30, speed) for speed in (0.1, 1, 10)]):
        for less, more in itertools.pairwise(figures):
            assert more[0] > less[0] or more[1] > less[1]


def test_a_model_fits_into_the_memory_of_the_host():
    fast = replace(LAPTOP, tflops=20.0)
    large = choose_first_config("mine", 10**9, 10**9, 10**6, fast, 600)
    small = choose_first_config("mine", 10**9, 10**9, 10**6, replace(fast, memory=large.bytes - 1), 600)
    assert small.bytes < large.bytes
    assert small.size.weights < large.size.weights


def test_the_vocabulary_grows_with_the_text():
    sizes = [choose_first_config("m", tokens, tokens, 10**4, LAPTOP, 1).vocab_size for tokens in (1_000, 10**6, 10**9)]
    assert sizes == [1024, 4096, 8192]
    assert choose_first_config("m", 10**9, 10**9, 10**6, SERVER, 1).vocab_size == 32768


@pytest.mark.parametrize(
    ("tokens", "steps", "rows", "lr", "note"),
    [
        (10**8, 3000, 128, 2.8e-3, "would wait for the host with fewer rows a step (estimated): there are 128"),
        (2 * 10**6, 3000, 128, 2.8e-3, "the text is too short for more than 128 rows a step"),
        (5 * 10**5, 2440, 64, 2e-3, "the text is too short for more than 64 rows a step"),
    ],
)
def test_a_gpu_that_would_wait_for_the_host_gets_a_larger_batch(tokens, steps, rows, lr, note):
    """A step of 7 layers takes 20 ms, as measured on one H100, also with more rows. So no step is lost."""
    one = replace(SERVER, gpus=SERVER.gpus[:1], tflops=989.0)
    first = choose_first_config("mine", tokens, tokens, 10**4, one, 1)
    assert (first.size.layers, first.steps, first.values["train"]["global_batch_size"]) == (7, steps, rows)
    assert first.values["optim"]["lr"] == lr
    assert 60 * first.minutes / first.steps == pytest.approx(0.02)
    assert first.epochs <= 40
    assert note in first.batch_note
    assert choose_first_config("mine", tokens, tokens, 10**4, LAPTOP, 1).batch_note is None


@pytest.mark.parametrize("gpus", [("H100",), ("A100-80GB",) * 2])
@pytest.mark.parametrize("tokens", [2_000, 5 * 10**5, 2 * 10**6, 10**8, 10**10])
@pytest.mark.parametrize("minutes", [1, 600])
def test_the_plan_of_a_first_config_agrees_with_it(gpus, tokens, minutes):
    machine = replace(SERVER, gpus=gpus, tflops=gpu_tflops(gpus))
    first = choose_first_config("mine", tokens, tokens, 10**4, machine, minutes)
    planner = Planner(Config.model_validate(first.values), None, first.vocab_size)
    planned, peak = planner.plan(len(gpus), GpuMemory.of(gpus[0], None)), gpu_tflops(gpus[:1])
    assert host_advice(replace(planned, epochs={"mine": first.epochs}), planner.shape, peak) is None
    if advice := host_advice(planned, planner.shape, peak):
        assert "unless the text is short" in advice
        assert "the text is too short for more than" in first.batch_note


@pytest.mark.parametrize(
    ("busy", "epochs", "factor"),
    [(0.51, 1, None), (0.49, 1, 2), (0.26, 1, 2), (0.24, 1, 4), (0.01, 5, 8), (0.01, 6, 4), (0.01, 21, None)],
)
def test_a_larger_batch_neither_keeps_the_gpu_longer_nor_repeats_the_text_too_often(busy, epochs, factor):
    first = choose_first_config("mine", 10**8, 10**8, 10**4, replace(SERVER, gpus=SERVER.gpus[:1], tflops=989.0), 1)
    planner = Planner(Config.model_validate(first.values), None, first.vocab_size)
    planned, shape, rows = planner.plan(1), planner.shape, first.values["train"]["global_batch_size"]
    flops = busy * host_seconds(shape.layers) / gpu_seconds(1, shape.hidden, 989.0) * first.values["train"]["steps"]
    planned = replace(planned, stages=(replace(planned.largest, flops=flops),), epochs={"a": 0.1, "b": epochs})
    advice = host_advice(planned, shape, 989.0)
    assert advice is None if factor is None else advice.endswith(f"for example to {factor * rows:,}.")


def test_the_speed_of_an_unknown_gpu_is_low():
    assert gpu_tflops(["NVIDIA H100 80GB HBM3", "GPU"]) == 989 + 50


def test_a_gpu_without_bf16_trains_in_fp16(tmp_path):
    old = replace(SERVER, gpus=("Tesla V100-SXM2-16GB",), tflops=50.0, bf16=False)
    first = choose_first_config("mine", 10**6, 10**6, 10**4, old, 1)
    file = tmp_path / "mine.yaml"
    file.write_text(first.text([]))
    assert load_config(file).train.precision == "fp16"


def test_few_documents_have_a_large_held_out_share():
    shares = [choose_first_config("m", 10**6, 10**6, n, LAPTOP, 1).valid_fraction for n in (20, 100, 10**6)]
    assert shares == [0.5, 0.1, 0.05]
