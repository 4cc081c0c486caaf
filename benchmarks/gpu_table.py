"""The table of speeds on this machine's GPUs: each model in each variant, its floor, and its rivals.

    python -m benchmarks.gpu_table
    python -m benchmarks.gpu_table --device cpu --quick --out /tmp/gpu_table.md

The phases run in order of value, each in its own process with a time limit. After each phase, the results so far are in
a JSON file; the page follows at the end. A phase that fails or takes too long keeps what it has measured, and costs no
other phase. The script needs no git, no network and no MLflow.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_phases import VARIANTS, Phase, Request, phases
from benchmarks.harness import ROOT, options, run, table, warn_if_busy, write_page
from benchmarks.step import bundled
from data_prep.common.errors import UserError
from data_prep.common.files import write_json

# Real tokens per second on one H100, predicted before any measurement, for the fastest variant.
PREDICTED = {
    "modernbert-base-1024": 440_000,
    "base-512": 670_000,
    "large-512": 222_000,
    "mmbert-base-1024": 300_000,
}
Results = dict[str, dict[str, Any]]


def main() -> None:
    args = arguments()
    if args.phase:
        measure_here(args)
        return
    warn_if_busy()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-table-") as folder:
        data = args.data.resolve() if args.data else bundled(Path(folder))
        request = request_of(args, data)
        results: Results = json.loads(args.json.read_text())["phases"] if args.resume and args.json.exists() else {}
        end = time.monotonic() + 60 * args.minutes
        for phase in wanted(request, args.only):
            if results.get(phase.name, {"failed": "not measured"}).keys() == {"seconds", "result"}:
                continue
            seconds = min(60 * phase.minutes, end - time.monotonic())
            results[phase.name] = outcome(phase, request, seconds, Path(folder)) if seconds > 0 else {"skipped": True}
            write_json(args.json, {"device": args.device, "quick": args.quick, "phases": results})
            print(f"{phase.name}: {results[phase.name].get('failed', 'done')}", flush=True)
    write_page(args.out, page(results, request), ("torch", "transformers", "deepspeed"))
    if failed := [name for name, one in results.items() if "failed" in one]:
        sys.exit(f"error: {args.json} lacks results of the phases that failed: {', '.join(failed)}")


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "gpu_table")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument("--quick", action="store_true", help="a small model and few steps, to try the script")
    parser.add_argument("--only", nargs="+", metavar="PHASE", help="names of phases, or first words of names")
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS], default=[*VARIANTS], help="of our side")
    parser.add_argument(
        "--search-minutes", type=float, default=5.0, help="time to find the best settings of transformers"
    )
    parser.add_argument("--resume", action="store_true", help="keep the phases that --json has, and measure the others")
    parser.add_argument("--minutes", type=float, default=120.0, help="no phase starts or runs after this time")
    parser.add_argument("--json", type=Path, help="file of results (default: the page's name with .json)")
    parser.add_argument("--data", type=Path, help="a data set folder (default: documents cut from the bundled text)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of a CPU")
    parser.add_argument("--phase", help=argparse.SUPPRESS)  # measure this one here, and write its result to --json
    args = parser.parse_args()
    args.json = args.json or args.out.with_suffix(".json")
    return args


def request_of(args: argparse.Namespace, data: Path) -> Request:
    """The settings on the command line."""
    return Request(data, args.device, args.threads, args.quick, tuple(args.variants), 60 * args.search_minutes)


def wanted(request: Request, only: list[str] | None) -> list[Phase]:
    """The phases whose names or first words are in `only`, or all.

    Raises:
        UserError: if no phase has one of the names.
    """
    known = phases(request)
    names = {name for phase in known for name in (phase.name, phase.name.split()[0])}
    if unknown := set(only or ()) - names:
        raise UserError(f"--only has no phase {', '.join(sorted(unknown))}; phases are {', '.join(sorted(names))}")
    return [phase for phase in known if not only or {phase.name, phase.name.split()[0]} & {*only}]


def outcome(phase: Phase, request: Request, seconds: float, folder: Path) -> dict[str, Any]:
    """Run a phase in a process with a separate group. Returns its result, and the reason if it failed."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu_table", "--phase", phase.name, "--json", answer]
    command += ["--data", request.data, "--device", request.device, "--threads", str(request.threads)]
    command += ["--quick"] * request.quick + ["--variants", *request.variants]
    command += ["--search-minutes", str(request.search_seconds / 60)]
    begin = time.monotonic()
    child = subprocess.Popen([str(word) for word in command], cwd=ROOT, start_new_session=True)
    found: dict[str, Any] = {}
    try:
        if code := child.wait(seconds):
            found["failed"] = f"exit code {code}"
    except subprocess.TimeoutExpired:
        found["failed"] = f"ended after its limit of {seconds / 60:.1f} minutes"
    finally:
        end_group(child)
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found | ({"result": json.loads(answer.read_text())} if answer.exists() else {})


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End a phase with all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def measure_here(args: argparse.Namespace) -> None:
    """Measure one phase in this process, and write each value to the file immediately."""
    request = request_of(args, args.data)
    (phase,) = (phase for phase in phases(request) if phase.name == args.phase)
    found: dict[str, Any] = {}
    for name, value in phase.measure(request):
        found[name] = value
        write_json(args.json, found)


def page(results: Results, request: Request) -> str:
    """The page of results."""
    found = {name: one["result"] for name, one in results.items() if "result" in one}
    missing = [
        [name, one.get("failed", "no time was left")]
        for name, one in results.items()
        if "failed" in one or "result" not in one
    ]
    sections = [f"## {name}\n\n{_renderer(name)(result, found)}" for name, result in found.items()]
    notes = f"## Not measured, or only in part\n\n{table(['phase', 'reason'], *missing, left=2)}" if missing else ""
    title = "Speed on a GPU" if request.device == "cuda" else "The GPU table, tried on a CPU"
    return f"""# {title}

Real tokens per second: padding does not count. Documents have log-normal lengths. MFU: operations of the whole model
for real tokens, relative to the peak of the data sheet; "computed" leaves out what Maskwright skips. A host wait is an
operation that the host waits for. Predictions were written before the first measurement.

{chr(10).join(f"{section}{chr(10)}" for section in sections)}
{notes}"""


def _renderer(name: str) -> Callable[[dict[str, Any], Results], str]:
    kind, _, case = name.partition(" ")
    if kind == "steps":
        return lambda result, found: _steps(case, result, found)
    if kind == "rivals":
        return lambda result, found: _rivals(case, result, found)
    if kind == "repeated":
        return _repeated_attention if case == "attention" else _repeated_runs
    return {"products": _products, "attention": _attention, "operations": _operations}.get(kind, _plain)


def _steps(case: str, result: dict[str, Any], found: Results) -> str:
    peak = found.get("versions", {}).get("peak TFLOP/s")
    rows = []
    for name, one in result.items():
        if "failed" in one:
            rows.append([name, f"failed: {one['failed']}", *[""] * 6])
            continue
        shares = [f"{one[kind] / peak:.1%}" if peak else "" for kind in ("TFLOP/s", "computed TFLOP/s")]
        rate = f"{one['tokens per second']:,.0f} ({one['least']:,.0f} to {one['most']:,.0f})"
        waits = "" if one["host waits per step"] is None else f"{one['host waits per step']}"
        memory = f"{one['peak bytes'] / 2**30:.1f} GiB"
        rows.append([name, rate, f"{one['TFLOP/s']:.3g}", *shares, memory, f"{one['slots filled']:.1%}", waits])
    header = [
        "",
        "real tokens/s",
        "TFLOP/s",
        "MFU",
        "MFU, computed",
        "peak memory",
        "slots filled",
        "host waits a step",
    ]
    note = f"\n\nPredicted for one H100: at least {PREDICTED[case]:,} real tokens/s." if case in PREDICTED else ""
    return table(header, *rows) + note


def _rivals(case: str, result: dict[str, Any], found: Results) -> str:
    trials = [[name, f"{rate:,.0f}" if rate else "failed"] for name, rate in result.get("trials", {}).items()]
    shown = f"Search of the best settings:\n\n{table(['', 'real tokens/s'], *trials)}" if trials else ""
    measured = _steps(case, result["sides"], found) if result.get("sides") else "No setting was measured in rounds."
    return f"{shown}\n\n{measured}"


def _products(result: dict[str, Any], found: Results) -> str:
    rows = [[case, name, f"{rate:.3g}"] for case, rates in result.items() for name, rate in rates.items()]
    return table(["model", "product", "TFLOP/s"], *rows, left=2)


def _attention(result: dict[str, Any], found: Results) -> str:
    rows = [
        [shape, backend, f"failed: {one['failed']}", ""]
        if "failed" in one
        else [shape, backend, f"{one['milliseconds']:.2f}", f"{one['TFLOP/s']:.3g}"]
        for shape, backends in result.items()
        for backend, one in backends.items()
    ]
    return table(["shape", "backend", "ms, forward and backward", "TFLOP/s"], *rows, left=2)


def _operations(result: dict[str, Any], found: Results) -> str:
    rows = [[side, f"`{name[:80]}`", f"{ms:.2f}"] for side, times in result.items() for name, ms in times]
    return table(["model", "operation", "ms per step"], *rows, left=2)


def _repeated_runs(result: dict[str, Any], found: Results) -> str:
    rows = []
    for variant, switches in result.items():
        for switch, one in switches.items():
            if "failed" in one:
                rows.append([variant, switch, f"failed: {one['failed']}", *[""] * 4])
                continue
            off = switches["off"].get("tokens per second")
            cost = f"{1 - one['tokens per second'] / off:.1%}" if off and switch == "on" else ""
            equal = f"{'equal bit by bit' if one['equal'] else 'differ'}, {one['steps']} steps"
            differences = [f"{one[kind]:.2g}" for kind in ("losses", "weights")]
            rows.append([variant, switch, equal, *differences, f"{one['tokens per second']:,.0f}", cost])
    header = ["", "deterministic", "two runs", "losses differ by", "weights differ by", "real tokens/s", "cost"]
    note = """Two runs of the engine with one seed; largest relative differences of a loss and of a parameter. With
`run.deterministic`, `train.compile: auto` does not compile; "compiled" is `train.compile: true`. The second run takes
compiled code from the cache of the first."""
    return f"{note}\n\n{table(header, *rows, left=3)}"


def _repeated_attention(result: dict[str, Any], found: Results) -> str:
    rows = []
    for form, backends in result.items():
        for backend, switches in backends.items():
            for switch, one in switches.items():
                rows.append([form, backend, switch, *_of_repetitions(one)])
    names = ["output", "dQ", "dK", "dV"]
    note = "Repetitions that differ from the first in any bit; the largest difference, relative to the largest value."
    return f"{note}\n\n{table(['shape', 'backend', 'deterministic', *names], *rows, left=3)}"


def _of_repetitions(one: dict[str, Any]) -> list[str]:
    if "failed" in one:
        return [f"failed: {one['failed'][:80]}", "", "", ""]
    of = one["repetitions"]
    parts = [part for name, part in one.items() if name != "repetitions"]
    return [f"{part['differ']} of {of}" + (f", {part['by']:.1g}" if part["differ"] else "") for part in parts]


def _plain(result: dict[str, Any], found: Results) -> str:
    return table(["", ""], *([name, _shown(value)] for name, value in result.items()), left=2)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    run(main)
