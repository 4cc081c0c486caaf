"""Learning rate and clipping of a deep post-norm BERT at reduced width, next to a ModernBERT (pre-norm).

    python -m experiments.post_norm --input books.jsonl.zst --jobs 2

It runs maskwright's commands. Run the same command again to resume: results in --work are used again.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml

from data_prep.format import Dataset
from data_prep.inspection import summary
from experiments import small_models
from experiments.common import held_out_losses, maskwright, prepare, run, table, write_page
from experiments.small_models import CONFIG, VALID_FRACTION, config_of
from pretrain.run import EXIT_CODES

WIDTH = 128
SIZE = {"layers": 12, "hidden": WIDTH, "heads": 2}
POST: dict[str, Any] = {"arch": "bert", "size": SIZE | {"intermediate": 4 * WIDTH}, "scaled_init": True}
PRE: dict[str, Any] = {"arch": "modernbert", "size": SIZE | {"intermediate": 3 * WIDTH // 2}}
ARMS = [(POST, 1e-3, 0), (POST, 1e-3, 1), (POST, 5e-4, 1), (POST, 2.5e-4, 1), (PRE, 1e-3, 1)]  # model, rate, clipping
NAMES = [f"{'pre' if model is PRE else 'post'}-norm-{lr:g}-{clipping}" for model, lr, clipping in ARMS]
STEPS, UNTIL, EVERY = 600, 400, 100


def main() -> None:
    parser = small_models.options(__doc__, "post_norm")
    parser.add_argument("--jobs", type=int, default=1, help="models trained at the same time")
    args = small_models.parsed(parser)
    prepare(args, VALID_FRACTION)
    with ThreadPoolExecutor(args.jobs) as pool:
        for job in [pool.submit(train, args, *arm) for arm in zip(NAMES, ARMS, strict=True)]:
            job.result()
    report(args)


def train(args: argparse.Namespace, name: str, arm: tuple[dict[str, Any], float, int]) -> None:
    """Train an arm for the first UNTIL of STEPS steps; with --quick, for all of very few."""
    model, lr, clipping = arm
    sections: dict[str, Any] = {
        "masking": {"rate": 0.15},
        "model": model | ({"size": SIZE | {"hidden": 16}} if args.quick else {}),
        "optim": {"lr": lr, "eps": 1e-6, "weight_decay": 0.01, "grad_clip": clipping},
        "schedule": {"kind": "linear", "warmup_steps": 1 if args.quick else round(0.06 * STEPS)},
    }
    if not args.quick:
        batch = {"steps": STEPS, "global_batch_size": 32, "micro_batch_size": 32}
        sections |= {"train": CONFIG["train"] | batch, "eval": CONFIG["eval"] | {"every_steps": EVERY}}
    (args.work / f"{name}.yaml").write_text(yaml.safe_dump(config_of(name, sections)))
    folder = args.work / "runs" / name
    if not (folder / "journal.jsonl").exists() or UNTIL not in held_out_losses(folder):
        maskwright(args, "train", f"{name}.yaml", f"run.stop_after={UNTIL}", also=[EXIT_CODES["stopped"]])


def report(args: argparse.Namespace) -> None:
    by_arm = [held_out_losses(args.work / "runs" / name) for name in NAMES]
    steps = [step for step in by_arm[0] if step <= UNTIL]
    rows = [[name, *(f"{losses[step]:.3f}" for step in steps)] for name, losses in zip(NAMES, by_arm, strict=True)]
    page = f"""# Learning rate and clipping of a deep post-norm BERT

12 layers x {WIDTH}, {args.vocab_size:,} ids, books: the first {UNTIL} of {STEPS} steps of 32 rows of 128 tokens. AdamW,
15% masked, a warm-up over 6% of the steps and a linear decay. Post-norm is `arch: bert` with `scaled_init`, pre-norm
`arch: modernbert`, which also has rotary positions, gated layers and local attention. One seed: a small difference may
come from it.

Held-out loss in nats after so many steps. The unigram entropy of the held-out text is
{summary(Dataset(args.work / "data/valid"))["unigram_entropy"]:.3f}: a model that stalls stays there.

{table(["form, rate, clipping (0: none)", *map(str, steps)], *rows)}

The recipes for a day are wider (768 and 1,024), and wider models need lower rates. The page shows which settings learn
at this depth. It does not show the best rate at their width.
"""
    write_page(args.out, page, ("torch", "deepspeed", "transformers"))


if __name__ == "__main__":
    run(main)
