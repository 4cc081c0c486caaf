"""Fine-tune models on the tasks of a suite, and compare them with random weights and baselines without a model.

    python -m experiments.tasks models/a models/b --suite configs/suites/glue-like.yaml

It runs `maskwright evaluate --suite` in the current folder. Run the same command again to resume: results in --work are
used again.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.finetuning import Suite, read_suite
from experiments.common import ROOT, maskwright, options, parsed, run, table, write_page


def main() -> None:
    parser = options(__doc__, "tasks", "tasks")
    parser.add_argument("models", nargs="+", type=Path, help="folders of models, or runs")
    parser.add_argument("--suite", type=Path, default=ROOT / "configs/suites/glue-like.yaml")
    args = parsed(parser, "suite")
    results = args.work / "tasks.json"
    maskwright(args, "evaluate", *args.models, "--suite", args.suite, "--json", results, folder=Path.cwd())
    tables = json.loads(results.read_text(encoding="utf-8"))["tasks"]
    write_page(args.out, page(args, read_suite(args.suite), tables), ("torch", "transformers"))


def page(args: argparse.Namespace, suite: Suite, tables: Mapping[str, Any]) -> str:
    """Markdown."""
    parts = "\n\n".join(_task(args, name, suite, of_task) for name, of_task in tables.items())
    return f"""# Does pretraining help? Fine-tuning on {len(tables)} tasks

Each model, and random weights of the same architecture, went through the same steps of `maskwright evaluate --suite`.
Learning rate and epochs were chosen with one seed, measured on a part of the training examples; then the seeds were
trained with the choice. The 95% intervals (Student's t) are over seeds of fine-tuning: not over pretrainings or
held-out examples.

{parts}
"""


def _task(args: argparse.Namespace, name: str, suite: Suite, of_task: Mapping[str, Any]) -> str:
    task, metric = suite.tasks[name], of_task["metric"]
    short = [model.name for model in args.models]
    names = {str(model): model.name for model in args.models if short.count(model.name) == 1}
    rows = []
    for model, row in sorted(of_task["models"].items(), key=lambda item: "above_random" not in item[1]):
        interval = " to ".join(f"{100 * bound:.1f}" for bound in row["interval"] or ())
        above = {True: "yes", False: "no"}.get(row.get("above_random"), "")
        choice = f"{row['lr']:g}, {row['epochs']}"
        searched = f"{100 * max(choice['score'] for choice in row['search']):.1f}" if row.get("search") else ""
        rows.append([names.get(model, model), f"{100 * row['mean']:.1f}", interval, above, choice, searched])
    rows.append([of_task["baseline"]["name"], f"{100 * of_task['baseline'][metric]:.1f}", "", "", "", ""])
    limit = f"{task.limit:,} training examples, evenly spaced" if task.limit else "all training examples"
    start = f", from the model fine-tuned on {task.start}" if task.start else ""
    header = ("model", f"{metric} x 100", "95% interval", "above random weights", "rate, epochs", "in the search x 100")
    return f"## {name}\n\n{task.task.capitalize()}, {limit}, {task.seeds} seeds{start}.\n\n{table(header, *rows)}"


if __name__ == "__main__":
    run(main)
