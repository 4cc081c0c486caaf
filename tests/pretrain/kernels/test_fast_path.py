"""Kernels and flash attention: what a run may try, what it chooses and takes over, and what it says: tables."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import kernels
from pretrain.kernels import Candidates, ComputeBackends, FastPath, FlashAttention, KernelChoice
from pretrain.kernels.backend_choice import fastest_attention
from pretrain.trial.kernel_choice import made_with
from tests.support.configs import least_config

PLAIN, KERNELS, COMPILED, BOTH = (
    FastPath(fused, compiled) for fused, compiled in [(False, False), (True, False), (False, True), (True, True)]
)
FLASH_3 = [path._replace(flash=3) for path in (KERNELS, PLAIN)]
EUROBERT = {"model": {"arch": "eurobert", "size": {"layers": 1, "hidden": 64, "heads": 2, "intermediate": 64}}}
WITH = "A GPU, torch 2.13"


@pytest.mark.parametrize(
    ("device", "train", "sections", "paths", "reason"),
    [
        ("cuda", {}, {}, [KERNELS, PLAIN], ""),
        ("cuda", {}, EUROBERT, [BOTH, KERNELS, PLAIN], ""),
        ("cuda", {}, EUROBERT | {"run": {"deterministic": True}}, [KERNELS, PLAIN], "run.deterministic is true"),
        ("cpu", {}, {}, [PLAIN], "no GPU"),
        ("cuda", {"compile": False}, {}, [KERNELS, PLAIN], ""),
        ("cuda", {"fused_kernels": False}, {}, [COMPILED, PLAIN], ""),
        ("cuda", {"fused_kernels": True}, {}, [KERNELS], ""),
        ("cuda", {"compile": True}, {}, [BOTH, COMPILED], ""),
        ("cpu", {"compile": True}, {}, [COMPILED], "no GPU"),
        ("cuda", {"fused_kernels": True, "compile": True}, {}, [BOTH], ""),
        ("cuda", {"fused_kernels": False, "compile": False}, {}, [PLAIN], ""),
        ("cpu", {"fused_kernels": False, "compile": False}, {}, [PLAIN], ""),
        ("cuda", {}, {"zero": {"stage": 3}}, [PLAIN], "zero.stage is 3"),
        ("cuda", {"fused_kernels": True}, {"zero": {"stage": 3}}, [KERNELS], ""),
        ("cuda", {}, {"model": {"arch": "auto", "config": {"model_type": "bert"}}}, [PLAIN], "model.arch is auto"),
        ("cuda", {}, {"guard": {"dry_run": False}}, [PLAIN], "guard.dry_run is false"),
        ("cuda", {}, {"run": {"deterministic": True}}, [KERNELS, PLAIN], ""),
        ("cuda", {"fused_kernels": False}, {"run": {"deterministic": True}}, [PLAIN], "run.deterministic is true"),
        ("cuda", {"compile": True}, {"run": {"deterministic": True}}, [BOTH, COMPILED], ""),
        ("cuda", {}, {"model": {"dropout": 0.1}}, [KERNELS, PLAIN], ""),
        ("cuda", {"fused_kernels": False}, {"model": {"dropout": 0.1}}, [PLAIN], "model.dropout is set"),
        ("cuda 3", {}, {}, [FLASH_3[0], KERNELS, FLASH_3[1], PLAIN], ""),
        ("cuda 3", {"fused_kernels": False, "compile": False}, {}, [FLASH_3[1], PLAIN], ""),
        ("cuda 3", {"flash_attention": 2}, {}, [KERNELS, PLAIN], ""),
        ("cuda 3", {"flash_attention": 3}, {}, FLASH_3, ""),
        ("cuda 3", {"compile": False}, {"run": {"deterministic": True}}, [KERNELS, PLAIN], "no FlashAttention 3: run."),
        ("cuda 3", {"precision": "fp32"}, {}, [KERNELS, PLAIN], "no flash attention: train.precision is fp32"),
        ("cuda 3", {}, {"zero": {"stage": 3}}, [PLAIN], "zero.stage is 3"),
        ("cuda 3", {}, {"guard": {"dry_run": False}}, [PLAIN], "guard.dry_run is false"),
    ],
)
def test_candidates(device, train, sections, paths, reason):
    """On a device, also with a newer flash attention."""
    name, *flash = device.split()
    candidates = Candidates.of(least_config(train=train, **sections), name, *map(int, flash))
    assert list(candidates.paths) == paths
    assert reason in candidates.reason
    assert bool(reason) == bool(candidates.reason)
    assert (candidates.choice is not None) == (len(paths) == 1)


@pytest.mark.parametrize(
    ("problems", "path", "reason"),
    [
        ({}, FLASH_3[0], "agrees with the plain step on 4 rows"),
        ({FLASH_3[0]: "wrong"}, KERNELS, "agrees with the plain step on 4 rows; Triton with FlashAttention 3: wrong"),
        (
            {FLASH_3[0]: "wrong", KERNELS: "no compiler", FLASH_3[1]: "wrong"},
            PLAIN,
            "Triton with FlashAttention 3: wrong; Triton: no compiler; plain with FlashAttention 3: wrong",
        ),
    ],
)
def test_the_first_path_without_a_problem_is_chosen(problems, path, reason):
    asked = []

    def problem_of(path: FastPath) -> str | None:
        asked.append(path)
        return problems.get(path)

    candidates = Candidates.of(least_config(), "cuda", flash=3)
    assert candidates.choose(problem_of, lambda: "4 rows") == KernelChoice(path, reason)
    assert PLAIN not in asked
    assert len(asked) == len(set(asked))


def recorded(choice: KernelChoice, made_with: str = WITH) -> dict[str, Any]:
    """What a start with this choice writes in environment.json."""
    return {**ComputeBackends.of(least_config(), "cuda", choice=choice).as_values(), "kernels_made_with": made_with}


@pytest.mark.parametrize(
    ("chosen", "made_with", "paths"),
    [
        (KERNELS, WITH, [KERNELS, PLAIN]),
        (PLAIN, WITH, [PLAIN]),
        (PLAIN, "another GPU", [KERNELS, PLAIN]),
        (BOTH, WITH, [KERNELS, PLAIN]),
    ],
)
def test_a_resumed_run_does_not_try_what_its_last_start_rejected(chosen, made_with, paths):
    record = recorded(KernelChoice(chosen, "Triton: wrong"), made_with)
    resumed = Candidates.of(least_config(), "cuda").after_record(record, WITH)
    assert list(resumed.paths) == paths
    assert resumed.known == (chosen if (chosen, made_with) in [(KERNELS, WITH), (PLAIN, WITH)] else None)
    if resumed.known:
        again = resumed.choose(lambda path: None, lambda: "4 rows")
        assert again == KernelChoice(chosen, "as at the last start: Triton: wrong")
    if resumed.choice:
        assert resumed.choice.reason == "as at the last start: Triton: wrong"
        again = Candidates.of(least_config(), "cuda").after_record(recorded(resumed.choice), WITH)
        assert again.choice == resumed.choice, "the reason must not grow at each start"


def test_a_resumed_run_compares_kernels_whose_sources_have_changed(tmp_path, monkeypatch):
    flash = FlashAttention()
    candidates, record = Candidates.of(least_config(), "cuda"), recorded(KernelChoice(KERNELS), made_with("cpu", flash))
    for name, changed in (("same", ""), ("changed", "\n")):
        shutil.copytree(Path(kernels.__file__).parent, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        with (tmp_path / name / "norm.py").open("a") as file:
            file.write(changed)
        monkeypatch.setattr(kernels, "__file__", str(tmp_path / name / "__init__.py"))
        assert (candidates.after_record(record, made_with("cpu", flash)) == candidates) == bool(changed)


def test_a_resumed_run_takes_over_the_version_of_flash_attention():
    candidates = Candidates.of(least_config(), "cuda", flash=3)
    resumed = candidates.after_record(recorded(KernelChoice(KERNELS)), WITH)
    assert resumed.paths == (KERNELS, FLASH_3[1], PLAIN), "version 3 with kernels was rejected before"
    resumed = candidates.after_record(recorded(KernelChoice(FLASH_3[0])), WITH)
    assert (resumed.known, resumed.paths) == (FLASH_3[0], candidates.paths)


@pytest.mark.parametrize("record", [{}, {"kernels_made_with": WITH}, {"kernels_made_with": WITH, "kernels": "fast"}])
def test_a_record_that_is_missing_or_damaged_is_ignored(record):
    candidates = Candidates.of(least_config(), "cuda")
    assert candidates.after_record(record, WITH) == candidates


@pytest.mark.parametrize("sections", [{}, {"model": {"dropout": 0.1}}, {"run": {"deterministic": True}}])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_s_config_has_the_chosen_path(precision, sections):
    for path in Candidates.of(least_config(train={"precision": precision}, **sections), "cuda", flash=3).paths:
        stored = least_config(train={"precision": precision} | path.as_settings(), **sections)
        assert Candidates.of(stored, "cuda", flash=3).paths == (path,)


PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model", [{}, {"dropout": 0.1}, {"size": {"layers": 1, "hidden": 60, "heads": 3}}])
def test_the_encoder_computes_what_the_run_reports(precision, device, model):
    reported = ComputeBackends.of(least_config(train={"precision": precision}, model=model), device)
    size = model.get("size", {"hidden": 256, "heads": 4})
    per_head = size["hidden"] // size["heads"]
    used = fastest_attention(device, str(PRECISIONS[precision]), per_head, model.get("dropout", 0.0))
    assert reported.attention == used
    fast = device == "cuda" and precision != "fp32" and not model
    assert used == ("varlen" if fast else "sdpa")


NO_KERNELS = {"train": {"precision": "bf16", "fused_kernels": False, "compile": False}}
FP32 = {"train": NO_KERNELS["train"] | {"precision": "fp32"}}
HEADS_OF_24 = {"model": {"size": {"layers": 1, "hidden": 72, "heads": 3}}}
AUTO = {"model": {"arch": "auto", "config": {"model_type": "bert"}}}
VARLEN = "attention varlen"
ON_CPU = "attention sdpa (the device is cpu, not cuda), kernels"
AGREES = KernelChoice(FastPath(True, True, 3), "agrees on 4 rows")


@pytest.mark.parametrize(
    ("sections", "device", "choice", "line"),
    [
        (NO_KERNELS | HEADS_OF_24, "cuda", None, f"{VARLEN} (flash attention), kernels plain"),
        (NO_KERNELS, "cuda", KernelChoice(FastPath(False, False)), f"{VARLEN} (FlashAttention 2), kernels plain"),
        ({}, "cuda", None, f"{VARLEN} (flash attention), kernels auto (the trial step compares Triton with plain)"),
        ({}, "cuda", AGREES, f"{VARLEN} (FlashAttention 3), kernels Triton and compiled (agrees on 4 rows)"),
        ({}, "cpu", None, f"{ON_CPU} plain (no GPU)"),
        ({"train": {"compile": True, "fused_kernels": False}}, "cpu", None, f"{ON_CPU} compiled"),
        (FP32 | {"model": {"dropout": 0.1}}, "cpu", None, f"{ON_CPU} plain"),
        (
            FP32 | {"model": {"dropout": 0.1}},
            "cuda",
            None,
            "warning: attention sdpa (train.precision is fp32; model.dropout is 0.1), kernels plain; "
            "for flash attention, set train.precision to bf16 or fp16; set model.dropout to 0",
        ),
        (
            NO_KERNELS | {"model": {"size": {"layers": 1, "hidden": 60, "heads": 3}}},
            "cuda",
            None,
            "warning: attention sdpa (heads have 20 dimensions, not a multiple of 8), kernels plain; "
            "for flash attention, choose a model.size whose hidden / heads is a multiple of 8",
        ),
        (FP32 | AUTO, "cuda", None, "attention transformers, kernels plain"),
    ],
)
def test_a_start_says_what_computes_why_and_what_to_change(sections, device, choice, line):
    assert ComputeBackends.of(least_config(**sections), device, choice=choice).start_line == line


def test_the_record_of_a_run():
    values = ComputeBackends.of(least_config(**NO_KERNELS), "cuda").as_values()
    assert values == {"attention": "varlen", "kernels": "plain"}
    on_cpu = {"attention": "sdpa", "kernels": "plain", "kernels_reason": "no GPU"}
    on_cpu["attention_reason"] = "the device is cpu, not cuda"
    assert ComputeBackends.of(least_config(), "cpu").as_values() == on_cpu
    chosen = ComputeBackends.of(least_config(), "cuda", choice=AGREES).as_values()
    assert chosen.items() >= {"attention": "varlen", "flash_attention": 3}.items()
    assert "flash_attention" not in ComputeBackends.of(least_config(), "cpu", choice=AGREES).as_values()
