"""Whole runs through the command line: the same result, other process counts, resume, refusals, export."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertLMHeadModel,
    ModernBertDecoderForCausalLM,
    pipeline,
)

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain import checkpoint
from pretrain.config import Config
from pretrain.export import export_run
from pretrain.export.hugging_face_export import native_state
from pretrain.model import Encoder, EncoderShape, describe_model
from pretrain.reporting import replay
from pretrain.run import Entry, RunFolder
from tests.support import runs, text_data
from tests.support.datasets import flip
from tests.support.held_out import held_out_loss
from tests.support.in_process import refused
from tests.support.slurm_jobs import program
from tests.system.soak.soak import assert_same_checkpoint

STEPS = 12
METRICS = {f"train/{name}" for name in ("loss", "masked_accuracy", "learning_rate", "mask_rate", "grad_norm")}
METRICS |= {f"speed/{name}" for name in ("tokens_per_second", "data_wait", "step_seconds", "tflops")}
METRICS |= {"data/epoch", "data/seq_len"}
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "clang++", "nvcc", "ninja", "ld")
MIXTURE = [{"kind": "clm", "share": 0.25}, {"kind": "mlm", "share": 0.75}]
SETTINGS = {"train__steps": STEPS, "checkpoint__every_steps": 4, "eval__every_steps": 6}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return text_data.text_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the module's runs."""
    return tmp_path_factory.mktemp("runs")


def config_of(data: Path, run: Path, **overrides) -> Path:
    return runs.config_file(data, run, **(SETTINGS | overrides))


def train(config: Path, *overrides: str, processes: int = 2, real: bool = False) -> str:
    result = runs.succeed("train", config, *overrides, "--procs", str(processes), real=real)
    return result.stderr


@pytest.fixture(scope="module")
def reference(data, folder) -> Path:
    """A run of two processes with the default ZeRO stage, by the real command; other runs' processes are forked.

    Compilers fail, and record that they were called.
    """
    for name in COMPILERS:
        program(folder / "bin", name, f'echo "$0" "$@" >> {folder}/compiled\nexit 1')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "extensions"))
        before = shared_memory()
        train(config_of(data, folder / "reference"), real=True)
    assert shared_memory() <= before
    return folder / "reference"


def shared_memory() -> set[Path]:
    """What DeepSpeed's extension for CPUs makes."""
    return set(Path("/dev/shm").glob("deepspeed_*"))


@pytest.fixture(scope="module")
def single(data, folder) -> Path:
    """The same run in one process, ZeRO 0 and two micro-batches."""
    train(config_of(data, folder / "single", zero__stage=0, train__micro_batch_size=4), processes=1)
    return folder / "single"


@pytest.fixture(scope="module")
def exported(reference, folder) -> Path:
    runs.succeed("export", reference, "--out", folder / "model")
    return folder / "model"


def numbers(run: Path, *names: str) -> dict[int, list[float]]:
    return {entry.step: [entry.metrics[n] for n in names if n in entry.metrics] for entry in runs.journal(run)}


def test_training_on_a_cpu_compiles_nothing(reference, folder):
    assert not (folder / "compiled").exists(), (folder / "compiled").read_text()
    assert not (folder / "extensions").exists()


EXACT = ("train/loss", "train/grad_norm", "train/masked_accuracy", "eval/loss", "eval/masked_accuracy")


def test_journal_holds_every_step_with_its_metrics(reference):
    lines = [Entry.from_line(line) for line in (reference / "journal.jsonl").read_bytes().splitlines()]
    assert None not in lines
    found = runs.journal(reference)
    assert [entry.step for entry in found] == list(range(1, STEPS + 1))
    for entry in found:
        evaluated = {"eval/loss", "eval/masked_accuracy", "eval/seconds"} if entry.step in (6, 12) else set()
        saved = {"checkpoint/seconds", "checkpoint/write_seconds"} if entry.step in (4, 8, 12) else set()
        assert entry.metrics.keys() == METRICS | evaluated | saved
        assert all(np.isfinite(value) for value in entry.metrics.values())
        assert 0 <= entry.metrics["train/masked_accuracy"] <= 1
    rates = [entry.metrics["train/learning_rate"] for entry in found]
    wanted = [k / 6 for k in range(1, 6)] + [1.0] * 6 + [0.5]
    assert rates == pytest.approx([2e-3 * factor for factor in wanted])
    assert found[-1].metrics["train/loss"] < found[0].metrics["train/loss"] - 0.3, "it learns"


def test_same_config_same_numbers_and_allowed_changes_go_on(reference, data, folder):
    """Forked processes give the results of the real command, with weights and optimizer state."""
    again = folder / "again"
    config = config_of(data, again)
    train(config)
    assert numbers(again, *EXACT) == numbers(reference, *EXACT)
    assert runs.batches(again) == runs.batches(reference)
    assert_same_checkpoint(RunFolder(reference), RunFolder(again), STEPS)
    output = train(config, "train.steps=15", "optim.lr=1e-4", "run.allow_changes=true", "run.resume=required")
    assert f"resumed after step {STEPS}" in output
    assert "completed after step 15 of 15; `maskwright export " in output
    found = runs.losses(again)
    assert list(found) == list(range(1, 16))
    assert {step: loss for step, loss in found.items() if step <= STEPS} == runs.losses(reference)
    assert numbers(again, "train/learning_rate")[13] == [1e-4]
    assert (runs.status(again)["state"], runs.status(again)["total_steps"]) == ("completed", 15)
    assert [step for step, _ in checkpoint.committed(again / "checkpoints")] == [15, 12]


def test_process_count_zero_stage_and_accumulation_change_rounding_only(reference, single):
    """fp32 sums in another order: equal to 1e-4 of the value after twelve steps; the rows are the same."""
    assert numbers(single, "train/learning_rate") == numbers(reference, "train/learning_rate")
    assert runs.batches(single) == runs.batches(reference)
    found, wanted = numbers(single, "train/loss", "eval/loss"), numbers(reference, "train/loss", "eval/loss")
    assert list(found) == list(wanted)
    for step in wanted:
        assert found[step] == pytest.approx(wanted[step], rel=1e-4), step


def test_a_refused_command_changes_nothing(single, folder):
    before = [(single / name).read_text() for name in ("config.yaml", "status.json")]
    message = refused("train", folder / "single.yaml", "masking.rate=0.3", "run.seed=8", "train.steps=20")
    assert "masking.rate was 0.15 and is 0.3" in message
    assert "run.seed was 7 and is 8" in message
    assert "train.steps" not in message
    assert [(single / name).read_text() for name in ("config.yaml", "status.json")] == before


# Export


def native(run: Path, step: int, data: Path) -> Encoder:
    """The trained model, rebuilt from its checkpoint."""
    saved = checkpoint.read(run / "checkpoints" / f"step-{step:08d}")
    config = Config.model_validate(saved.state["config"])
    shape = EncoderShape(**describe_model(config, Dataset(data / "train").manifest.tokenizer))
    encoder = Encoder(shape)
    encoder.load_state_dict(native_state(saved))
    return encoder.eval()


@torch.no_grad()
def assert_same_logits(encoder: Encoder, model_folder: Path, auto: Any = AutoModelForMaskedLM) -> None:
    """fp32 logits of real sentences through both, one document at a time."""
    model, loading = auto.from_pretrained(model_folder, output_loading_info=True, dtype=torch.float32)
    assert {name: list(keys) for name, keys in loading.items() if keys} == {}
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    for text in text_data.sentences(5, seed=9):
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=32)["input_ids"]
        n = ids.shape[1]
        cu_seqlens = torch.tensor([0, n], dtype=torch.int32)
        hidden = encoder.hidden(ids[0], torch.arange(n), cu_seqlens, seq_len=n)
        wanted = encoder.logits(hidden)[:, : len(tokenizer)]
        torch.testing.assert_close(model.eval()(input_ids=ids).logits[0], wanted, rtol=1e-4, atol=1e-5)


def test_exported_model_has_the_trained_model_s_logits(reference, exported, data):
    assert_same_logits(native(reference, STEPS, data), exported)
    with pytest.raises(AssertionError):
        assert_same_logits(native(reference, 8, data), exported)


def test_fill_mask_loads_the_exported_model(exported):
    fill = pipeline("fill-mask", model=str(exported))
    answers = fill("the captain [MASK] the red ship.")
    assert len(answers) == 5
    assert fill.tokenizer.model_max_length == 32
    card = (exported / "README.md").read_text()
    assert f"| steps | {STEPS} of {STEPS} |" in card
    assert "| longest text | 32 tokens |" in card


def test_checkpoint_holds_the_weights_that_training_evaluated(reference, data):
    wanted = numbers(reference, "eval/loss")[STEPS][0]
    assert held_out_loss(native(reference, STEPS, data), data) == pytest.approx(wanted, rel=1e-5)
    assert held_out_loss(native(reference, 8, data), data) != pytest.approx(wanted, rel=1e-3)


def test_zero_3_bf16_exports_its_weights(data, folder):
    run = folder / "zero3"
    output = train(config_of(data, run, zero__stage=3, train__precision="bf16"))
    assert ("set train.precision=fp32" in output) is not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    export_run(run, None, folder / "zero3-model")
    assert_same_logits(native(run, STEPS, data), folder / "zero3-model")


def test_no_export_of_a_damaged_checkpoint(reference, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(reference, damaged)
    (file,) = (damaged / "checkpoints/step-00000012/deepspeed").glob("*zero_pp_rank_1*optim_states.pt")
    flip(file)
    with pytest.raises(UserError, match=f"{file} differs from its checksum"):
        export_run(damaged, None, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged"]
    export_run(damaged, 8, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


# The causal objective


@pytest.fixture(scope="module", params=[pytest.param("bert", marks=pytest.mark.slow), "modernbert"])
def causal(data, folder, request) -> Path:
    run = folder / f"causal-{request.param}"
    train(config_of(data, run, objective="clm", model__arch=request.param), processes=1)
    return run


def test_a_causal_run_learns_and_is_replayed(causal, data):
    found = runs.journal(causal)
    assert [entry.step for entry in found] == list(range(1, STEPS + 1))
    assert found[-1].metrics["train/loss"] < found[0].metrics["train/loss"] - 0.3, "it learns"
    assert {entry.metrics["train/mask_rate"] for entry in found} == {1.0}
    for step in (1, STEPS):
        replay(causal, step)  # raises unless the batch has the checksum in the journal
    wanted = held_out_loss(native(causal, STEPS, data), data, objective="clm")
    assert found[-1].metrics["eval/loss"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("arch", [pytest.param("bert", marks=pytest.mark.slow), "modernbert"])
def test_a_mixture_is_exported_for_each_view_with_equal_logits(data, folder, arch):
    run = folder / f"views-{arch}"
    both = [{"kind": "clm", "share": 0.5}, {"kind": "mntp", "share": 0.5}]
    train(config_of(data, run, objective=both, model__arch=arch, train__steps=2, track__models="none"), processes=1)
    encoder = native(run, 2, data)
    for view, auto in (("bidirectional", AutoModelForMaskedLM), ("causal", AutoModelForCausalLM)):
        runs.succeed("export", run, "--view", view)
        model = run / f"exports/step-00000002-{view}"
        encoder.shape = replace(encoder.shape, causal=view == "causal")
        assert_same_logits(encoder, model, auto)
        card = (model / "README.md").read_text()
        assert f"| attention | {view} |" in card
        assert "| causal language modelling | share of the rows 0.5; predicted: every token but special" in card
        assert json.loads((model / "config.json").read_text()).get("prediction_lag") == (
            None if view == "causal" else 1
        )
    with pytest.raises(AssertionError):
        assert_same_logits(encoder, run / "exports/step-00000002-bidirectional", AutoModelForMaskedLM)


@pytest.fixture(scope="module")
def mixed(data, folder) -> Path:
    """A run of two objectives."""
    run = folder / "mixed"
    train(config_of(data, run, objective=MIXTURE, model__arch="modernbert"))
    return run


def test_a_mixture_learns_both_objectives_and_is_replayed(mixed, data):
    found = runs.journal(mixed)
    for name in ("mlm", "clm"):
        first, last = (found[at].metrics[f"train/loss/{name}"] for at in (0, -1))
        assert last < first - 0.2, "it learns"
        seen = native(mixed, STEPS, data)
        seen.shape = replace(seen.shape, causal=name == "clm")
        wanted = held_out_loss(seen, data, objective=name)
        assert found[-1].metrics[f"eval/loss/{name}"] == pytest.approx(wanted, rel=1e-5)
    for entry in found:
        parts = [entry.metrics[f"train/loss/{name}"] for name in ("mlm", "clm")]
        assert entry.metrics["train/loss"] == pytest.approx(0.75 * parts[0] + 0.25 * parts[1])
    for step in (1, STEPS):
        kinds = [kind.name for kind in replay(mixed, step).rows.kinds]
        assert sorted(kinds) == ["clm"] * 2 + ["mlm"] * 6


def test_a_causal_run_is_exported_as_such(causal, data, folder):
    model = folder / f"{causal.name}-model"
    export_run(causal, None, model)
    config = json.loads((model / "config.json").read_text())
    kind = ModernBertDecoderForCausalLM if "modernbert" in causal.name else BertLMHeadModel
    assert config["architectures"] == [kind.__name__]
    assert config["eos_token_id"] is None, "texts have no end token"
    assert isinstance(AutoModelForCausalLM.from_pretrained(model), kind)
    assert_same_logits(native(causal, STEPS, data), model, AutoModelForCausalLM)
    with pytest.raises(AssertionError):
        assert_same_logits(native(causal, 8, data), model, AutoModelForCausalLM)
    card = (model / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", card.replace("PATH_OF_THIS_FOLDER", str(model)), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    ids = names["found"][0].tolist()
    assert ids[: len(names["ids"]) + 1] == [names["tokenizer"].cls_token_id, *names["ids"]]
    assert len(ids) == len(names["ids"]) + 11
    if kind is ModernBertDecoderForCausalLM:  # which is causal alone
        cls = names["tokenizer"].cls_token_id
        assert config["bos_token_id"] == names["model"].generation_config.bos_token_id == config["cls_token_id"] == cls
        assert "both sides" not in card
        return
    ids = torch.tensor([ids])
    for sees_both_sides, settings in ((False, {}), (True, {"is_decoder": False})):
        encoder = AutoModel.from_pretrained(model, **settings).eval()
        first, cut = (encoder(input_ids=part).last_hidden_state[0, 0] for part in (ids, ids[:, :4]))
        assert torch.allclose(first, cut, atol=1e-5) is not sees_both_sides


def test_a_diffusion_run_is_replayed_and_exported(data, folder):
    run = folder / "diffusion"
    train(config_of(data, run, objective="diffusion", schedule__kind="constant", train__steps=2), processes=1)
    assert [entry.metrics["train/mask_rate"] for entry in runs.journal(run)] == [1.0] * 2
    replay(run, 2)  # raises unless the batch has the checksum in the journal
    export_run(run, None, folder / "diffusion-model")
    assert "uniform rates drawn for each row" in (folder / "diffusion-model" / "README.md").read_text()


def test_a_run_that_diverged_says_so_everywhere_and_a_resume_says_how_its_schedule_changed(data, folder):
    run = folder / "diverged"
    config = config_of(data, run, optim__lr=50.0, schedule__warmup_steps=0)
    done = runs.succeed("train", config)
    assert "warning: optim.lr is 50, at which training usually diverges" in done.stderr
    assert f"warning: {run} diverged: the loss of the last 10 steps is " in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{run}: completed after step 12 of 12: all steps are done, but ")
    status = RunFolder(run).read_status()
    assert status.state == "completed"
    assert "training diverged" in status.reason
    assert "optim.lr" in status.next_action
    page = (run / "report.html").read_text()
    assert "The run diverged: " in page
    assert "optim.lr is 50" in page
    (tracked,) = MlflowClient(f"sqlite:///{run.parent}/mlflow.db").search_runs(["1"], "tags.outcome = 'diverged'")
    assert tracked.info.run_name == "diverged"

    done = runs.succeed("train", config, f"train.steps={STEPS + 4}", "track.uri=none")
    changed = "Changed schedule: 16 steps instead of 12; the learning rate of step 13 is 50 instead of 0, at the "
    assert changed in done.stderr
