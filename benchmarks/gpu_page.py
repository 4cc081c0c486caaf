"""The page of benchmarks/gpu_table.py: predictions, figures and profiles side by side."""

from collections.abc import Iterable
from typing import Any

from benchmarks.harness import table

# Milliseconds of a step of 65,536 slots on one H100: measured on 2026-11-26, by parts as far as its rates explain it
# (attention: least and most); what the present code should take; the least that the parts allow.
BEFORE = ("step", "products", "attention", "elementwise", "cross-entropy", "optimizer")
BUDGET: dict[str, tuple[str, ...]] = {
    "modernbert-base-1024": ("161.5", "79.2", "46 to 50", "27.9", "2.7", "2.6"),
    "modernbert-base-8192": ("181.2", "79.6", "67 to 74", "27.9", "2.7", "2.6"),
    "mmbert-base-1024": ("206.6", "109.1", "46 to 50", "27.9", "16.9", "5.3"),
    "base-512": ("99.7", "52.3", "23 to 26", "17.7", "0.8", "1.9"),
    "large-512": ("286.6", "178.6", "60 to 68", "48.8", "0.8", "5.8"),
}
# The window kernel saves 14 to 21 ms of attention, the longest document 7 to 11 at 8,192, the last residual sum 0.7.
# Gradients of biases in the norm's kernel save BERT-base 2.0, BERT-large 5.4. AdamW: 34 bytes a weight instead of 52.
# Queries of the last layer where something is predicted save 0.9 to 2.0 ms of attention, and 0.2 to 0.6 of products.
PREDICTED = {
    "modernbert-base-1024": {
        "step": "138 to 145",
        "products": "79.0",
        "attention": "24 to 35",
        "elementwise": "27.2",
        "optimizer": "1.7",
    },
    "modernbert-base-8192": {
        "step": "145 to 157",
        "products": "79.4",
        "attention": "33 to 51",
        "elementwise": "27.2",
        "optimizer": "1.7",
    },
    "mmbert-base-1024": {
        "step": "182 to 189",
        "products": "108.9",
        "attention": "24 to 35",
        "elementwise": "27.2",
        "optimizer": "3.5",
    },
    "base-512": {
        "step": "95.7",
        "products": "52.0",
        "attention": "22 to 25",
        "elementwise": "15.7",
        "optimizer": "1.2",
    },
    "large-512": {
        "step": "277.3",
        "products": "178.0",
        "attention": "59 to 67",
        "elementwise": "43.4",
        "optimizer": "3.8",
    },
}
FLOOR = {
    "modernbert-base-1024": 108,
    "modernbert-base-8192": 113,
    "mmbert-base-1024": 150,
    "base-512": 70,
    "large-512": 228,
}
AIM = {  # real tokens a second
    "modernbert-base-1024": "470,000, then 540,000",
    "modernbert-base-8192": "450,000",
    "mmbert-base-1024": "340,000",
    "base-512": "745,000",
    "large-512": "252,000",
}
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
    parts = [name for name in one if name != "kernels"]
    names = [*BEFORE, *(part for part in parts if part not in BEFORE)]
    before = dict(zip(BEFORE, BUDGET[case], strict=True))
    predicted = {part: before[part] for part in BEFORE} | PREDICTED[case]
    rows = [[part, before.get(part, ""), predicted.get(part, ""), shown(one.get(part, 0.0))] for part in names]
    measured = [step["ms per step"] for unit, step in results_of("steps", items).items() if unit.startswith(f"{case}:")]
    if measured:
        rows.insert(1, ["step, without the profiler", before["step"], predicted["step"], shown(measured[0])])
    kernels = [[kind, f"`{name}`".replace("|", "/"), f"{ms:.2f}"] for kind, name, ms in one["kernels"]]
    return (
        f"{case}, milliseconds per step; a run's way to compute attention; the floor is {FLOOR[case]}:\n\n"
        f"{table(['part', 'before', 'predicted', 'measured'], *rows)}\n\n"
        f"{table(['kind', 'kernel', 'ms'], *kernels, left=2)}"
    )


def steps(measured: dict[str, Any], items: Items, ours: bool) -> str:
    """Figures of sides; of a run's way, the first of each case, beside the figures before, predictions and aims."""
    told: set[str] = set()
    peak = results_of("machine", items).get("versions", {}).get("peak TFLOP/s")
    rows = []
    for unit, one in measured.items():
        case, _, way = unit.partition(": ")
        shares = [f"{one[kind] / peak:.1%}" if peak else "" for kind in ("TFLOP/s", "computed TFLOP/s")]
        rate = f"{one['tokens per second']:,.0f} ({one['least']:,.0f} to {one['most']:,.0f})"
        waits = "" if one["host waits per step"] is None else f"{one['host waits per step']}"
        expected = [BUDGET[case][0], PREDICTED[case]["step"], AIM[case]] if ours and case not in told else [""] * 3
        told.add(case)
        cells = [case, way, *expected, f"{one['ms per step']:.1f}", rate]
        rest = [f"{one['peak bytes'] / 2**30:.1f} GiB", f"{one['slots filled']:.1%}", waits]
        rows.append([*cells, f"{one['TFLOP/s']:.3g}", *shares, *rest])
    header = ["model", "way", "ms before", "predicted", "aim, tokens/s", "ms", "real tokens/s", "TFLOP/s", "MFU"]
    return table([*header, "MFU, computed", "peak memory", "slots filled", "host waits"], *rows, left=2)


def results_of(name: str, items: Items) -> dict[str, Any]:
    """What was measured of an item."""
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
