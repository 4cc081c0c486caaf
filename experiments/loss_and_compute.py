"""Loss against compute: a power law is fitted to models of growing size, and predicts a run with four times as much.

    python -m experiments.loss_and_compute --input 'books/*.jsonl.zst' --work runs/compute

Each size trains on tokens in proportion to the weights of its layers, with several seeds, by `maskwright study sweep`.
The fit is L = E + A * (C / C0)**-alpha: L is the mean held-out loss of the seeds, C the model FLOPs of a run as
`maskwright plan` counts them, and C0 the FLOPs of the smallest run. The prediction is written to a JSON file in --work
before the large run starts, with the settings; other settings need another --work. Its range is from fits without
one size. Run the same command again to resume.
"""

import argparse
import json
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from data_prep.common.errors import UserError
from data_prep.common.files import write_json
from experiments.charts import COLOURS, chart
from experiments.common import prepare, run, table, write_page
from experiments.small_models import CONFIG, SEQ_LEN, VALID_FRACTION, options, parsed, sweep, write_config
from pretrain.config_files import load_config
from pretrain.data import Sources
from pretrain.planning import Planner

WIDTHS = (64, 80, 96, 112)  # of the fitted models, with four layers and heads of 16
LARGE = 176  # weights and tokens both grow with the square of the width: over four times the compute of 112
TOKENS_PER_WEIGHT = 10  # with 3, models of width 64 and less stay around the unigram, where no power law holds
STORED = "prediction.json"  # in --work, where the JSON file of the page may also be
SETTINGS = ("input", "vocab_size", "widths", "large", "tokens_per_weight", "lr", "seeds", "quick")
Law = tuple[float, float, float, float]  # E, A, alpha and C0


def main() -> None:
    args = arguments()
    results = stored(args)
    prepare(args, VALID_FRACTION)
    file = args.work / STORED
    write_json(file, results)
    results["sizes"] = {str(width): measured(args, width) for width in args.widths}
    if "prediction" not in results:  # it is never changed, as the large run may have begun
        results["prediction"] = prediction(args, results["sizes"])
    write_json(file, results)
    results["large"] = measured(argparse.Namespace(**vars(args) | {"seeds": args.large_seeds}), args.large)
    draw(args, results)
    write_page(args.out, page(args, results), ("torch", "deepspeed", "transformers"))
    results["settings"]["input"] = args.input.name
    write_json(args.out.with_suffix(".json"), results)


def stored(args: argparse.Namespace) -> dict[str, Any]:
    """The results in --work, or only the settings. Raises UserError if its results have other settings."""
    settings = {name: value for name, value in vars(args).items() if name in SETTINGS} | {"input": str(args.input)}
    file = args.work / STORED
    results: dict[str, Any] = {"settings": settings}
    if file.exists():
        results = json.loads(file.read_text(encoding="utf-8"))
        if (known := results.get("settings")) != settings:
            raise UserError(f"{args.work} has results of {known}, not {settings}. Name another --work.")
    return results


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "loss_and_compute")
    parser.add_argument("--widths", type=int, nargs="+", default=[*WIDTHS], help="of the fitted models")
    parser.add_argument("--large", type=int, default=LARGE, help="width of the model to predict")
    parser.add_argument(
        "--tokens-per-weight", type=float, default=TOKENS_PER_WEIGHT, help="slots of rows for each weight of a layer"
    )
    parser.add_argument("--lr", type=float, default=4e-3, help="of Muon")
    parser.add_argument("--seeds", type=int, default=3, help="of each fitted size")
    parser.add_argument("--large-seeds", type=int, default=3, help="of the model to predict")
    return parsed(parser, widths=[16, 32, 48], large=64, tokens_per_weight=0.02, seeds=1, large_seeds=1)


def config_of(args: argparse.Namespace, width: int) -> dict[str, Any]:
    """The config of a size. A ModernBERT layer has 8.5 h**2 weights: 4 h**2 of attention, and 4.5 h**2 of the MLP."""
    slots = 4 * 8.5 * width**2 * args.tokens_per_weight
    steps = max(2, round(slots / (CONFIG["train"]["global_batch_size"] * SEQ_LEN)))
    return {
        "run": {"dir": f"runs/width-{width}"},
        "model": {"arch": "modernbert", "size": {"layers": 4, "hidden": width, "heads": width // 16}},
        "optim": CONFIG["optim"] | {"lr": args.lr},
        "schedule": CONFIG["schedule"] | {"warmup_steps": steps // 20},
        "train": CONFIG["train"] | {"steps": steps},
        "checkpoint": {"every_steps": max(1, steps // 4), "keep": 1},
        "eval": {"every_steps": steps, "rows": 64},
    }


def measured(args: argparse.Namespace, width: int) -> dict[str, Any]:
    """FLOPs, losses and seconds of a size, which is trained unless it is there."""
    report = sweep(args, f"width-{width}", config_of(args, width), f"optim.lr={args.lr}")
    losses, seconds = (next(iter(report["values"][key].values())) for key in ("held_out", "seconds"))
    return {"flops": flops_of(args, width), "losses": [*losses.values()], "seconds": [*seconds.values()]}


def flops_of(args: argparse.Namespace, width: int) -> float:
    file = write_config(args, f"width-{width}", config_of(args, width))
    config = load_config(file, [f"data.{part}={args.work}/data/{part}" for part in ("train", "valid")])
    return float(Planner(config, Sources.open(config)).plan(args.procs).flops or 0)


def fit(points: dict[str, Any]) -> Law:
    """Least squares in the mean losses; E and A are not negative."""
    compute, loss = np.array([(point["flops"], np.mean(point["losses"])) for point in points.values()]).T
    base = float(compute.min())
    start, bounds = [0.8 * loss.min(), loss.max() - 0.8 * loss.min(), 0.2], ([0, 0, 0.01], [np.inf, np.inf, 2])
    solution = least_squares(lambda law: at((*law, base), compute) - loss, start, bounds=bounds, x_scale=start)
    floor, factor, alpha = map(float, solution.x)
    return floor, factor, alpha, base


def at(law: Law, compute: Any) -> Any:
    """The loss of the law for these FLOPs."""
    floor, factor, alpha, base = law
    return floor + factor * (np.asarray(compute) / base) ** -alpha


def prediction(args: argparse.Namespace, points: dict[str, Any]) -> dict[str, Any]:
    compute, law = flops_of(args, args.large), fit(points)
    others = [fit({name: point for name, point in points.items() if name != left_out}) for left_out in points]
    ends = [float(at(each, compute)) for each in (law, *others)]
    return {"flops": compute, "loss": ends[0], "range": [min(ends), max(ends)], "law": law}


def draw(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """The law, the losses that it was fitted to, and the large run with its prediction."""
    points, large, predicted = [*results["sizes"].values()], results["large"], results["prediction"]
    with chart(args.out.with_suffix(".png"), 6, 4) as figure:
        axes = figure.subplots()
        compute = np.geomspace(min(point["flops"] for point in points), large["flops"], 100)
        axes.plot(compute, at(tuple(predicted["law"]), compute), color=COLOURS[0], label="fit")
        for colour, label, of in ((COLOURS[0], "fitted", points), (COLOURS[1], "large run", [large])):
            x = [point["flops"] for point in of for _ in point["losses"]]
            axes.plot(x, [loss for point in of for loss in point["losses"]], "o", color=colour, label=label)
        axes.set(xscale="log", xlabel="model FLOPs", ylabel="held-out loss, nats", title="Loss against compute")
        axes.legend()


def page(args: argparse.Namespace, results: dict[str, Any]) -> str:
    predicted, large = results["prediction"], results["large"]
    floor, factor, alpha, base = predicted["law"]
    rows = []
    for width, point in [*results["sizes"].items(), (f"{args.large}, predicted before", large)]:
        minutes = np.mean(point["seconds"]) / 60
        each = ", ".join(f"{loss:.4f}" for loss in point["losses"])
        rows.append([width, f"{point['flops']:.3g}", f"{np.mean(point['losses']):.4f}", each, f"{minutes:.1f}"])
    low, high = predicted["range"]
    factor_more = large["flops"] / max(point["flops"] for point in results["sizes"].values())
    inside = "inside" if low <= np.mean(large["losses"]) <= high else "outside"
    return f"""# Loss against compute

ModernBERTs of 4 layers with {args.vocab_size:,} ids, each trained on {args.tokens_per_weight:g} slots of rows for each
weight of its layers (Muon, {args.lr:g}). Held-out loss is that of `maskwright study sweep`.

{table(["width", "model FLOPs", "held-out loss", "of each seed", "minutes a run"], *rows)}

Fit: L = {floor:.4f} + {factor:.4f} (C / {base:.3g})^-{alpha:.4f}. The large run has {factor_more:.1f} times the
compute of the largest fitted one. Predicted before it began:
**{predicted["loss"]:.4f}** ({low:.4f} to {high:.4f}, fits that leave out one size). Measured:
**{np.mean(large["losses"]):.4f}**, {inside} this range.

![The fit, and the losses of all runs]({args.out.stem}.png)
"""


if __name__ == "__main__":
    run(main)
