"""The script of the GPU table keeps what it measured, whatever happens later. It finds noise. CI runs it on a CPU."""

import contextlib
import json
import sys
import types
from argparse import Namespace
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_prediction, gpu_table
from benchmarks.gpu_page import page
from benchmarks.gpu_repeats import Run, compare_repetitions, compared
from benchmarks.gpu_steps import (
    Bench,
    FlatTransformers,
    OnDevice,
    PaddedTransformers,
    by_kind,
    kind_of,
    profiles,
    synthetic,
)
from benchmarks.step_parts import loader_seconds
from tests.support.datasets import random_dataset
from tests.support.forked import ROOT

ITEMS = (("machine", 30, "fake:units"), ("agreement", 30, "fake:broken"), ("attention", 30, "fake:units"))
# In the place of the process that measures: each time it ends or hangs in one measurement more.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
path = Path(sys.argv[sys.argv.index("--json") + 1])
results = json.loads(path.read_text())
item = results["items"].setdefault("machine", {"seconds": 0.0, "result": {}, "done": False})
item["result"].setdefault("first", {"value": 1})
unit = next((unit for unit in ("dies", "hangs") if unit not in item["result"]), None) or sys.exit()
results["running"] = {"item": "machine", "unit": unit, "since": time.time(), "until": time.time()}
path.write_text(json.dumps(results))
os._exit(9) if unit == "dies" else time.sleep(60)
"""


def arguments(folder: Path, **values) -> Namespace:
    random_dataset(folder / "data")
    files = {"data": folder / "data", "json": folder / "table.json", "out": folder / "table.md"}
    files["json"].write_text(json.dumps({"device": "cpu", "quick": True, "running": None, "items": {}}))
    return Namespace(**files, device="cpu", quick=True, only=None, end=4e9, **values)


def test_a_measurement_that_kills_its_process_or_hangs_costs_no_other(monkeypatch, tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()  # or the installed package is found first
    (tmp_path / "benchmarks/gpu_table.py").write_text(SCRIPT)
    monkeypatch.setattr(gpu_table, "ROOT", tmp_path)
    args = arguments(tmp_path)
    gpu_table.supervise(args, gpu_table.started() + 60, tmp_path)
    results = json.loads(args.json.read_text())
    assert results["items"]["machine"]["result"] == {
        "first": {"value": 1},
        "dies": {"failed": "its process ended with 9"},
        "hangs": {"failed": "it took too long"},
    }
    assert [*gpu_table.failures(results)] == ["machine, dies", "machine, hangs"]
    again = gpu_table.without_failures(results["items"])["machine"]
    assert (again["result"], again["done"]) == ({"first": {"value": 1}}, False)


def test_each_measurement_is_saved_and_a_failure_costs_no_other(monkeypatch, tmp_path):
    args, seen = arguments(tmp_path), []

    def units(bench):
        yield "fails", lambda: 1 / 0
        seen.append(json.loads(args.json.read_text())["items"]["machine"]["result"])
        yield "works", lambda: {"value": 2.0}

    def broken(bench):
        raise OSError("no such data")

    monkeypatch.setitem(sys.modules, "benchmarks.fake", types.SimpleNamespace(units=units, broken=broken))
    monkeypatch.setattr(gpu_table, "ITEMS", ITEMS)
    gpu_table.work(args)
    failed = {"failed": "ZeroDivisionError: division by zero"}
    assert seen[0] == {"fails": failed}
    results = json.loads(args.json.read_text())
    assert results["items"]["attention"]["result"] == {"fails": failed, "works": {"value": 2.0}}
    shown = args.out.read_text()
    assert "| works | 2 |" in shown
    assert "Not measured on a GPU" in shown
    assert "| machine | fails | ZeroDivisionError: division by zero |" in shown
    assert "| agreement | the others | OSError: no such data |" in shown
    assert "| profile | all | no time was left |" in page(results, ["machine", "profile"])


def test_the_rivals_compute_the_same_loss(tmp_path):
    bench = Bench("cpu", True, synthetic(tmp_path / "data", 4096, 120))
    work, (way, _) = bench.work("modernbert-base-1024"), bench.ways(local=True).values()
    losses = []
    assert 0 < loader_seconds(work, 1)["masking"] < 10
    for side in (OnDevice(work, way), FlatTransformers(work, compiled=False), PaddedTransformers(work)):
        with contextlib.closing(side.batches()) as batches:
            losses.append(float(side.step(next(batches))))
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-5)


def test_a_profile_of_a_given_data_set_and_its_kinds_of_kernels(tmp_path):
    random_dataset(tmp_path / "data")
    ((name, measure),) = islice(profiles(Bench("cpu", True, tmp_path / "data")), 1)
    found = measure()
    assert name == "modernbert-base-1024"
    assert min(found[kind] for kind in ("products", "attention", "elementwise", "optimizer", "step")) > 0
    kinds = {
        "nvjet_tst_192x192_64x4_1x2_h_bz_coopA_NNT": "products",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>": "attention",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>": "attention",
        "_window_backward": "attention",
        "_logits_loss": "cross-entropy",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>": "optimizer",
        "_backward": "elementwise",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "ncclKernel": "other",
    }
    assert {kernel: kind_of(kernel) for kernel in kinds} == kinds
    spans = [("gemm", 0.0, 4000.0), ("_logits_loss", 2000.0, 5000.0), ("gemm", 7000.0, 8000.0)]  # two streams
    parts = by_kind(spans, 2)
    assert {name: parts[name] for name in ("step", "products", "cross-entropy", "idle")} == pytest.approx(
        {"step": 4.0, "products": 2.5, "cross-entropy": 1.5, "idle": 1.0}
    )


def test_the_page_of_predictions_is_current_and_its_parts_add_up():
    page = (ROOT / "benchmarks/results/gpu_prediction.md").read_text()
    assert page.startswith(gpu_prediction.page().strip()), "run python -m benchmarks.gpu_prediction"
    for case, was in gpu_prediction.BEFORE.items():
        least, most = zip(*(gpu_prediction.saved(case, part) for part in gpu_prediction.PARTS), strict=True)
        assert gpu_prediction.step(case) == pytest.approx((was.step - sum(most), was.step - sum(least)))
        assert was.floor < gpu_prediction.step(case)[0] <= gpu_prediction.likely(case) < was.step


EQUAL = {"differ": 0, "by": 0.0}
RUN = Run([5.0, 4.0], {"a": np.ones(4, np.float32), "b": np.full(2, 3.0, np.float32)}, 1000.0)


def test_noise_in_a_run_is_found():
    assert compared(RUN, RUN)["equal"]
    other_loss = compared(RUN, replace(RUN, losses=[5.0, 4.0 + 1e-15 * 4]))
    assert not other_loss["equal"]
    assert 0 < other_loss["losses"] < 1e-14
    last = np.nextafter(RUN.weights["b"], 9, dtype=np.float32)
    other_weights = compared(RUN, replace(RUN, weights=RUN.weights | {"b": last}, rate=2000.0))
    assert not other_weights["equal"]
    assert (other_weights["losses"], other_weights["tokens per second"]) == (0.0, 1500.0)
    assert other_weights["weights"] == pytest.approx(2**-22 / 3, rel=1e-3)
    assert compared(RUN, replace(RUN, losses=[5.0, float("nan")]))["losses"] == float("inf")


def test_noise_in_a_repetition_is_found():
    calls = iter(range(9))

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(3), torch.tensor([4.0, 2.0 + (next(calls) % 3 == 2)])

    found = compare_repetitions(compute, ("steady", "noisy"), 9)
    assert found == {"repetitions": 8, "steady": EQUAL, "noisy": {"differ": 3, "by": 0.25}}
