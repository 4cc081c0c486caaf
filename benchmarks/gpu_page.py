"""The page of benchmarks/gpu_table.py: predictions, figures and profiles side by side."""

from collections.abc import Iterable
from typing import Any

from benchmarks.gpu_prediction import BEFORE, before, predicted
from benchmarks.harness import table

MANY = 6  # values of a measurement for one row of a table
Items = dict[str, dict[str, Any]]


def page(results: dict[str, Any], names: Iterable[str]) -> str:
    """The page of results; `names` of the items that were to be measured."""
    items: Items = results["items"]
    cuda = results["device"] == "cuda"
    title = "Speed on a GPU" if cuda else "The GPU table, tried on a CPU"
    stand_in = "" if cuda else "Not measured on a GPU: tiny models on a CPU, which show only that the script works.\n\n"
    parts = [f"## {name}\n\n{section(name, items)}\n" for name in names if items.get(name, {}).get("result")]
    missing = [cells for name in names for cells in missing_of(name, items.get(name))]
    if missing:
        parts.append(f"## Not measured\n\n{table(['item', 'measurement', 'reason'], *missing, left=3)}\n")
    return f"""# {title}

{stand_in}Real tokens per second: padding does not count. MFU: operations of the whole model for real tokens, relative
to the peak of the data sheet; "computed" leaves out what Maskwright skips. A host wait is an operation of a step that
the host waits for. Clocks and power: least, median and most during an item. Before: measured on 2026-11-26, one H100,
torch 2.11. Predictions were written before the measurement.

{chr(10).join(parts)}"""


def missing_of(name: str, item: dict[str, Any] | None) -> list[list[str]]:
    """Item, measurement and reason of what failed, or of what no time was left for."""
    if item is None:
        return [[name, "all", "no time was left"]]
    rows = [[name, unit, one["failed"].replace("|", "/")] for unit, one in item["result"].items() if "failed" in one]
    if "failed" in item:
        rows.append([name, "the others", item["failed"].replace("|", "/")])
    elif not item["done"]:
        rows.append([name, "the others", "no time was left"])
    return rows


def section(name: str, items: Items) -> str:
    """The tables of an item."""
    item = items[name]
    measured = {unit: one for unit, one in item["result"].items() if "failed" not in one}
    if name == "profile":
        text = "\n\n".join(profile(case, one, items) for case, one in measured.items())
    elif name in ("steps", "transformers", "packed-encoders"):
        text = steps(measured, items, ours=name == "steps")
    else:
        text = plain(measured)
    clocks = item.get("clocks")
    shown = "".join(f", {unit} {' / '.join(f'{value:,}' for value in clocks[unit])}" for unit in clocks or ())
    return f"{text}\n\n{item['seconds']:.0f} s{shown}."


def profile(case: str, one: dict[str, Any], items: Items) -> str:
    """Parts of a step in milliseconds: before, predicted, in the profile; with the speed without the profiler."""
    was, expected = before(case), predicted(case)
    parts = [*was, *(part for part in one if part not in (*was, "kernels"))]
    rows = [[part, was.get(part, ""), expected.get(part, ""), shown(one.get(part, 0.0))] for part in parts]
    measured = [step["ms per step"] for unit, step in results_of("steps", items).items() if unit.startswith(f"{case}:")]
    if measured:
        rows.insert(1, ["step, without the profiler", was["step"], expected["step"], shown(measured[0])])
    kernels = [[kind, f"`{name}`".replace("|", "/"), f"{ms:.2f}"] for kind, name, ms in one["kernels"]]
    return (
        f"{case}, milliseconds per step; a run's way to compute attention; the floor is {BEFORE[case].floor}:\n\n"
        f"{table(['part', 'before', 'predicted', 'measured'], *rows)}\n\n"
        f"{table(['kind', 'kernel', 'ms'], *kernels, left=2)}"
    )


def steps(measured: dict[str, Any], items: Items, ours: bool) -> str:
    """Figures of sides. The first of each case computes as a run does; it is compared with predictions and aims."""
    told: set[str] = set()
    peak = results_of("machine", items).get("versions", {}).get("peak TFLOP/s")
    rows = []
    for unit, one in measured.items():
        case, _, way = unit.partition(": ")
        shares = [f"{one[kind] / peak:.1%}" if peak else "" for kind in ("TFLOP/s", "computed TFLOP/s")]
        rate = f"{one['tokens per second']:,.0f} ({one['least']:,.0f} to {one['most']:,.0f})"
        waits = "" if one["host waits per step"] is None else f"{one['host waits per step']}"
        expected = [""] * 3
        if ours and case not in told:
            expected = [before(case)["step"], predicted(case)["step"], BEFORE[case].aim]
        told.add(case)
        cells = [case, way, *expected, f"{one['ms per step']:.1f}", rate]
        rest = [f"{one['peak bytes'] / 2**30:.1f} GiB", f"{one['slots filled']:.1%}", waits]
        rows.append([*cells, f"{one['TFLOP/s']:.3g}", *shares, *rest])
    header = ["model", "way", "ms before", "predicted", "aim, tokens/s", "ms", "real tokens/s", "TFLOP/s", "MFU"]
    return table([*header, "MFU, computed", "peak memory", "slots filled", "host waits"], *rows, left=2)


def results_of(name: str, items: Items) -> dict[str, Any]:
    """The measurements of an item that did not fail."""
    return {unit: one for unit, one in items.get(name, {}).get("result", {}).items() if "failed" not in one}


def plain(measured: dict[str, Any]) -> str:
    """Tables of measurements with the same values: a column for each value, or a row if they are many."""
    groups: list[tuple[list[str], dict[str, Any]]] = []
    for unit, one in measured.items():
        if not groups or not (set(one) <= set(groups[-1][0]) or set(groups[-1][0]) <= set(one)):
            groups.append(([], {}))
        names, together = groups[-1]
        names.extend(name for name in one if name not in names)
        together[unit] = one
    tables = []
    for names, together in groups:
        if len(names) > MANY:
            rows = [[name, *(shown(one.get(name, "")) for one in together.values())] for name in names]
            tables.append(table(["", *together], *rows))
        else:
            rows = [[unit, *(shown(one.get(name, "")) for name in names)] for unit, one in together.items()]
            tables.append(table(["", *names], *rows))
    return "\n\n".join(tables)


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
