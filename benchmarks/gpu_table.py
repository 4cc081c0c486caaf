"""The table of speeds on one GPU: attention, steps with their profiles, kernels, and rivals, next to the predictions.

    python -m benchmarks.gpu_table --minutes 8.5 --data DATA --out gpu_table.md
    python -m benchmarks.gpu_table --device cpu --quick --out /tmp/gpu_table.md

The items run in the order of ITEMS, in one process that imports everything once. Each measurement is written
immediately to the page and its JSON file. One that raises, ends the process, or takes too long is reported, and a new
process continues with the next. It needs no git, no network and no MLflow.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu_page import page
from benchmarks.harness import ROOT, options, run, warn_if_busy, write_page
from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from data_prep.common.packages import installed_version

# Name, seconds on one H100, and the function that yields names and calls of measurements.
ITEMS = (
    ("machine", 30, "gpu_kernels:machine"),
    ("agreement", 40, "gpu_kernels:agreement"),
    ("profile", 90, "gpu_steps:profiles"),
    ("attention", 70, "gpu_kernels:side_by_side"),
    ("steps", 110, "gpu_steps:steps"),
    ("kernels", 15, "gpu_kernels:kernels"),
    ("products", 25, "gpu_products:products"),
    ("transformers", 70, "gpu_steps:transformers_at_best"),
    ("packed-encoders", 50, "gpu_steps:packed_encoders"),
    ("determinism", 240, "gpu_repeats:determinism"),
    ("constants", 120, "gpu_constants:constants"),
    ("ZeRO 1", 120, "gpu_constants:zero_1"),
)
PATIENCE = 2.0  # an item may take so many times its seconds
GRACE = 4.0  # seconds between the end of a measurement's time and the end of its process
LOST = 3  # exit code of a process whose GPU takes no more work
TOKENS = 1 << 22  # of a synthetic data set
Results = dict[str, Any]


def main() -> None:
    args = arguments()
    if args.end:
        work(args)
        return
    warn_if_busy()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by a signal"))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results: Results = {"device": args.device, "quick": args.quick, "running": None, "items": {}}
    if args.resume and args.json.exists():
        results["items"] = without_failures(json.loads(args.json.read_text()).get("items", {}))
    write_json(args.json, results)
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-table-") as folder:
            supervise(args, started() + 60 * args.minutes, Path(folder))
    finally:
        results = json.loads(args.json.read_text())
        write(args, results)
    if failed := sorted(failures(results)):
        sys.exit(f"error: {args.json} lacks measurements that failed: {'; '.join(failed)}")


def started() -> float:
    """When this process started, as time.time(); now, if the system reports a time that cannot be right."""
    now, created = time.time(), psutil.Process().create_time()
    return created if 0 <= now - created < 60 else now


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "gpu_table")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models and few steps, to try the script")
    parser.add_argument("--only", nargs="+", metavar="ITEM", help=f"of {', '.join(name for name, *_ in ITEMS)}")
    parser.add_argument("--resume", action="store_true", help="keep the measurements that --json has, without failures")
    parser.add_argument("--minutes", type=float, default=60.0, help="from the start of the process until its end")
    parser.add_argument("--json", type=Path, help="file of results (default: the page's name with .json)")
    parser.add_argument("--data", type=Path, help="a data set folder (default: documents of random tokens)")
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)  # of the process that measures, as time.time()
    args = parser.parse_args()
    if args.device == "cpu" and not args.quick:
        raise UserError("--device cpu needs --quick: benchmarks.step measures on a CPU")
    if unknown := set(args.only or ()) - {name for name, *_ in ITEMS}:
        raise UserError(f"--only has no item {', '.join(sorted(unknown))}; see --help")
    args.json = args.json or args.out.with_suffix(".json")
    return args


def without_failures(items: Results) -> Results:
    """What need not be measured again; items that lack a measurement have their whole time again."""
    kept = {}
    for name, item in items.items():
        units = {unit: one for unit, one in item["result"].items() if "failed" not in one}
        whole = item["done"] and "failed" not in item and units == item["result"]
        kept[name] = item if whole else {"seconds": 0.0, "result": units, "done": False}
    return kept


def failures(results: Results) -> Iterator[str]:
    """Items and names of the measurements that failed."""
    for name, item in results["items"].items():
        yield from (f"{name}, {unit}" for unit, one in item["result"].items() if "failed" in one)
        if "failed" in item:
            yield name


def write(args: argparse.Namespace, results: Results) -> None:
    """Write the page."""
    names = [name for name, *_ in ITEMS if not args.only or name in args.only]
    packages = [package for package in ("torch", "transformers", "deepspeed") if installed_version(package)]
    write_page(args.out, page(results, names), packages, shown=False)


def supervise(args: argparse.Namespace, end: float, folder: Path) -> None:
    """Measure in another process until `end`; start it again if it ends or hangs in a measurement."""
    data = args.data.resolve() if args.data else folder / "data"
    command = [sys.executable, "-m", "benchmarks.gpu_table", "--device", args.device, "--json", args.json.resolve()]
    command += ["--out", args.out.resolve(), "--data", data, "--end", end, *["--quick"] * args.quick]
    command += ["--only", *args.only] if args.only else []
    environment = os.environ | {"DS_ACCELERATOR": args.device}
    code: int | None = None
    while code != 0 and time.time() < end:
        child = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment, start_new_session=True)
        try:
            code = watched(child, args.json, end)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # with all processes that it started
            child.wait()
        results = json.loads(args.json.read_text())
        if code and code != LOST and not results["running"]:
            raise UserError(f"the process that measures ended with {code}, before its first measurement")
        if code != 0 and (running := results["running"]):
            end_of(running, results["items"][running["item"]], code)
            results["running"] = None
            write_json(args.json, results)


def end_of(running: Results, item: Results, code: int | None) -> None:
    """Note in an item what ended its process: exit code `code`, or None if it took too long."""
    reason = "it took too long" if code is None else f"its process ended with {code}"
    item["seconds"] = round(item["seconds"] + time.time() - running["since"], 1)
    if running["unit"]:
        item["result"][running["unit"]] = {"failed": reason}
    else:  # before its first measurement
        item["failed"], item["done"] = reason, True


def watched(child: "subprocess.Popen[bytes]", path: Path, end: float) -> int | None:
    """The exit code of the process that measures; None if its measurement, or the whole, took too long."""
    while child.poll() is None:
        running = json.loads(path.read_text())["running"]
        if time.time() > min(end, running["until"] if running else end) + GRACE / 2:
            return None
        time.sleep(0.2)
    return child.returncode


def work(args: argparse.Namespace) -> None:
    """Measure what --json lacks, in this process."""
    import torch

    from benchmarks import gpu_steps
    from data_prep.format import Dataset

    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no GPU; --device cpu --quick tries the script")
    if not args.data.exists():
        gpu_steps.synthetic(args.data, TOKENS >> (6 if args.quick else 0), 120 if args.quick else 30_000)
    Dataset(args.data)  # a folder that is not a data set ends the call immediately
    bench = gpu_steps.Bench(args.device, args.quick, args.data)
    results, sampler = json.loads(args.json.read_text()), Sampler(args.device)
    for name, seconds, place in ITEMS:
        item = results["items"].setdefault(name, {"seconds": 0.0, "result": {}, "done": False})
        limit = PATIENCE * seconds - item["seconds"] if args.device == "cuda" else 600.0
        if item["done"] or limit <= 0 or (args.only and name not in args.only):
            continue
        until, since = min(args.end - GRACE, time.time() + limit), time.time()

        def note(unit: str | None, running: bool = True) -> None:
            """Say in the file what is being measured."""
            of = {"item": name, "unit": unit, "since": since, "until": until}  # noqa: B023
            results["running"] = of if running else None
            write_json(args.json, results)

        try:
            note(None)
            module, _, function = place.partition(":")
            for unit, measure in getattr(importlib.import_module(f"benchmarks.{module}"), function)(bench):
                if unit in item["result"]:
                    continue
                if time.time() > until:
                    break
                note(unit)
                item["result"][unit] = measured(measure)
                item["seconds"], since = round(item["seconds"] + time.time() - since, 1), time.time()
                note(unit, running=False)
                print(f"{name}, {unit}: {item['result'][unit].get('failed', 'done')}", flush=True)
                if "failed" in item["result"][unit] and lost(args.device):
                    os._exit(LOST)
            else:
                item["done"] = True
        except Exception as error:  # a module or the inputs of an item
            item["failed"], item["done"] = last_line(error), True
        results["running"] = None
        item["clocks"] = sampler.taken()
        write_json(args.json, results)
        write(args, results)
        if time.time() > args.end - GRACE:
            return


def measured(measure: Any) -> Results:
    """A measurement's values, or the reason why it failed."""
    try:
        values: Results = measure()
    except Exception as error:
        values = {"failed": last_line(error)}
    import torch

    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    with contextlib.suppress(RuntimeError):
        torch.cuda.empty_cache()
    return values


def last_line(error: Exception) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"[:300]


def lost(device: str) -> bool:
    """Whether the GPU refuses all further work of this process, as after an access outside of its memory."""
    import torch

    try:
        torch.cuda.synchronize() if device == "cuda" else None
    except RuntimeError:
        return True
    return False


class Sampler:
    """Clock and power of the GPU, four times a second; nothing where nvidia-ml-py cannot read them."""

    def __init__(self, device: str):
        self._samples: list[tuple[int, float]] = []
        with contextlib.suppress(Exception):
            if device == "cuda":
                import pynvml

                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByIndex(0)
                threading.Thread(target=self._sample, args=(pynvml, handle), daemon=True).start()

    def _sample(self, nvml: Any, handle: Any) -> None:
        with contextlib.suppress(Exception):
            while True:
                clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
                self._samples.append((clock, nvml.nvmlDeviceGetPowerUsage(handle) / 1e3))
                time.sleep(0.25)

    def taken(self) -> Results | None:
        """Least, median and most of the samples since the last call."""
        samples, self._samples = sorted(self._samples), []
        if not samples:
            return None
        watts = sorted(power for _, power in samples)
        middle = len(samples) // 2
        return {
            "MHz": [samples[0][0], samples[middle][0], samples[-1][0]],
            "W": [round(watts[0]), round(watts[middle]), round(watts[-1])],
        }


if __name__ == "__main__":
    run(main)
