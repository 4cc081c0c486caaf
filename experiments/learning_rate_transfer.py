"""Does the best learning rate stay the same when the model gets wider? A coordinate check, and a sweep of rates.

    python -m experiments.learning_rate_transfer --input 'books/*.jsonl.zst' --work runs/transfer

Both are done at four widths, with AdamW and with Muon. The coordinate check trains ten steps at one rate, and measures
how far they move the hidden states of held-out rows, in root mean square over all coordinates: if a rate transfers,
this does not grow with the width. The sweep is `maskwright study sweep` over rates and sizes. Run the same command
again to resume.
"""

import argparse
import json
from typing import Any

import numpy as np

from data_prep.common.files import write_json
from data_prep.format import Dataset
from evaluation.likelihood.held_out_loss import HeldOut, Masks
from evaluation.study.paired_statistics import paired_differences
from experiments.charts import COLOURS, chart
from experiments.common import maskwright, prepare, run, table, write_page
from experiments.small_models import CONFIG, SEQ_LEN, VALID_FRACTION, options, parsed, sweep, write_config
from pretrain.export import load_language_model

WIDTHS = (64, 128, 256, 512)
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), "muon": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)}
STEPS, ROWS = 10, 8  # of the coordinate check
ByRate = dict[float, dict[int, float]]  # losses by seed at each rate


def main() -> None:
    args = arguments()
    prepare(args, VALID_FRACTION)
    file = args.work / f"{args.out.stem}.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in args.optimizers:
        moved = results.setdefault(f"coordinates-{name}", {})
        for width in args.widths:
            if str(width) not in moved:
                moved[str(width)] = coordinate_check(args, name, width)
                write_json(file, results)
        results[name] = {str(width): sweep_rates(args, name, width) for width in args.widths[: args.swept]}
    draw(args, results)
    write_page(args.out, page(args, results), ("torch", "deepspeed", "transformers"))
    write_json(args.out.with_suffix(".json"), results)


def arguments() -> argparse.Namespace:
    parser = options(__doc__, "learning_rate_transfer")
    parser.add_argument("--optimizers", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--widths", type=int, nargs="+", default=[*WIDTHS])
    parser.add_argument("--swept", type=int, help="sweep only the first N widths")
    parser.add_argument("--rates", type=int, default=5, help="how many of the rates of each optimizer")
    parser.add_argument("--steps", type=int, default=400, help="of each run of the sweep")
    parser.add_argument("--seeds", type=int, default=3)
    return parsed(parser, optimizers=["muon"], widths=[32, 64], rates=1, steps=4, seeds=1)


def size_of(width: int) -> dict[str, int]:
    return {"layers": 4, "hidden": width, "heads": width // 32}


def own(name: str, width: int, steps: int) -> dict[str, Any]:
    """Sections of the config: constant settings except the rate."""
    return {
        "model": CONFIG["model"] | {"size": size_of(width)},
        "optim": CONFIG["optim"] | {"name": name},
        "schedule": CONFIG["schedule"] | {"warmup_steps": steps // 20},
        "train": CONFIG["train"] | {"steps": steps},
        "checkpoint": {"every_steps": steps, "keep": 1},
        "eval": {"every_steps": steps, "rows": 64},
    }


def coordinate_check(args: argparse.Namespace, name: str, width: int) -> list[float]:
    """Root mean square of the change of the hidden states after each layer, from the first step to the last."""
    run_name = f"coordinates-{name}-{width}"
    changes = own(name, width, STEPS) | {"schedule": {"kind": "constant"}}
    changes["checkpoint"] |= {"at_steps": [1]}
    changes["optim"] |= {"lr": RATES[name][1]}
    maskwright(args, "train", write_config(args, run_name, changes).name, "--procs", args.procs)
    models = {step: f"models/{run_name}-{step}" for step in (1, STEPS)}
    for step, out in models.items():
        if not (args.work / out).exists():
            maskwright(args, "export", f"runs/{run_name}", "--step", step, "--out", out)
    states = [hidden_states(args, out) for out in models.values()]
    return [float(np.sqrt(np.mean((last - first) ** 2))) for first, last in zip(*states, strict=True)]


def hidden_states(args: argparse.Namespace, model: str) -> list[np.ndarray]:
    """The states [rows, slots, width] after the embeddings and each layer, of the same held-out rows for all models."""
    import torch

    held_out = HeldOut(Dataset(args.work / "data/valid"), Masks(ROWS, SEQ_LEN, 0.15))
    tokens = np.concatenate([batch.tokens for batch in held_out]).reshape(-1, SEQ_LEN)
    language_model = load_language_model(args.work / model)[0].float()
    with torch.no_grad():
        states = language_model(torch.from_numpy(tokens), output_hidden_states=True).hidden_states
    return [state.numpy() for state in states]


def sweep_rates(args: argparse.Namespace, name: str, width: int) -> dict[str, dict[str, float]]:
    """Held-out losses by rate and seed."""
    rates = [*map(str, RATES[name][: args.rates])]
    values = sweep(args, f"rates-{name}-{width}", own(name, width, args.steps), f"optim.lr={','.join(rates)}")["values"]
    return {rate: values["held_out"][f"lr={rate}"] for rate in rates}


def losses_of(results: dict[str, Any], name: str) -> dict[int, ByRate]:
    """Held-out losses by rate and seed of each width that was swept."""
    return {
        int(width): {float(rate): {int(seed): loss for seed, loss in of.items()} for rate, of in by_rate.items()}
        for width, by_rate in results[name].items()
    }


def means(losses: ByRate) -> dict[float, float]:
    """The mean over seeds at each rate."""
    return {rate: float(np.mean([*by_seed.values()])) for rate, by_seed in losses.items()}


def draw(args: argparse.Namespace, results: dict[str, Any]) -> None:
    with chart(args.out.with_suffix(".png"), 9, 3.5) as figure:
        for name, axes in zip(args.optimizers, figure.subplots(1, len(args.optimizers), squeeze=False)[0], strict=True):
            for (width, by_rate), colour in zip(losses_of(results, name).items(), COLOURS, strict=False):
                axes.plot(*zip(*means(by_rate).items(), strict=True), "o-", color=colour, label=f"width {width}")
            axes.set(xscale="log", xlabel="learning rate", ylabel="held-out loss, nats", title=name)
            axes.legend()


def costs_of(losses: dict[int, ByRate], best: dict[int, float], first: float) -> dict[int, str]:
    """The loss at the rate `first` minus that at the best rate of each width."""
    costs = {width: "0" for width, rate in best.items() if rate == first}
    others = [width for width in best if width not in costs]
    pairs = [(losses[width][first], losses[width][best[width]]) for width in others]
    for width, minus in zip(others, paired_differences(pairs), strict=True):
        between = f" ({minus.interval[0]:+.4f} to {minus.interval[1]:+.4f})" if minus.interval else ""
        costs[width] = f"{minus.mean:+.4f}{between}"
    return costs


def page(args: argparse.Namespace, results: dict[str, Any]) -> str:
    sections = []
    for name in args.optimizers:
        losses = losses_of(results, name)
        best = {width: min(of := means(by_rate), key=of.__getitem__) for width, by_rate in losses.items()}
        first, rates = best[args.widths[0]], RATES[name][: args.rates]
        costs, rows = costs_of(losses, best, first), []
        for width in args.widths:
            cells = ["not swept", "", ""]
            if rate := best.get(width):
                edge = " (edge)" if rate in (rates[0], rates[-1]) else ""
                cells = [f"{rate:g}{edge}", f"{means(losses[width])[rate]:.4f}", costs[width]]
            moved = results[f"coordinates-{name}"][str(width)]
            rows.append([str(width), *cells, *(f"{value:.4f}" for value in moved[-2:])])
        header = ["width", "best rate", "held-out loss", f"loss at {first:g} minus best", "last layer", "output"]
        sections.append(f"## {name}\n\n{table(header, *rows)}")
    return f"""# Does the best learning rate stay the same when the model gets wider?

ModernBERTs of 4 layers with {args.vocab_size:,} ids, {args.steps} steps of {CONFIG["train"]["global_batch_size"]} rows
of {SEQ_LEN} slots, {args.seeds} seeds. The last two columns are the coordinate check: how far the hidden states moved
from step 1 to step {STEPS} at the constant second rate of the sweep, in root mean square.

Differences are means over seeds with Student's t intervals; Holm's procedure covers the widths of an optimizer.
The best rate is chosen by the same seeds, so no difference is below zero. "edge": the best rate is the lowest or the
highest that was tried, and a better one may be beyond it.

{chr(10).join(sections)}

![Held-out loss over the learning rate for each width]({args.out.stem}.png)

Values of each seed: [{args.out.stem}.json]({args.out.stem}.json).
"""


if __name__ == "__main__":
    run(main)
