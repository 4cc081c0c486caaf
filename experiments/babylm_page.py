"""The result page of babylm.py, also of incomplete results."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from evaluation.study.paired_statistics import mean_of
from experiments.common import table

WEIGHTS, VIEWS = ("averaged", "last"), ("causal", "masked")
Values = Mapping[str, Any]


def page(values: Values) -> str:
    """Markdown. values: what babylm.py has recorded; parts may be missing."""
    recipe, text, tokens = values["recipe"], values.get("text", {}), values.get("tokens", {})
    words, held_out = (text.get(name, {"words": 0, "documents": 0}) for name in ("train", "valid"))
    return f"""# BabyLM's ten million words on {"one GPU" if recipe["gpu"] else "two CPU cores"}

{"**Tiny models, only to see that the script works.**" if recipe["quick"] else ""}

`configs/babylm-10m.yaml`{"" if recipe["gpu"] else " at a reduced size"}, trained on {words["words"]:,} words in
{words["documents"]:,} whole documents ({tokens.get("train", 0) / 1e6:.2f} M tokens), each read at most ten times. They
were chosen by the SHA-256 of a seed and their text. {held_out["words"]:,} words of other documents are held out; they
may be other parts of the same books. Intervals (95%) are Student's t over seeds of pretraining.

{_DECIDED if recipe["gpu"] else ""}

## BLiMP and held-out loss

{_models(values.get("evaluation", {}))}

## Training

{_runs(values)}
"""


_DECIDED = """Decided before the first run: from 68 (BabyLM's mean of the better view) the result is published; from 71
it is called "as GPT-BERT", which has 71.7 (causal), 71.3 (mixed) and 70.4 (mostly masked); below 66 a defect is looked
for."""


def _models(evaluated: Values) -> str:
    models = {
        (view, weights): of_seeds
        for weights in WEIGHTS
        for view in VIEWS
        if (of_seeds := [value for name, value in evaluated.items() if name.split()[1:] == [view, weights]])
    }
    models |= {("unigram", ""): [evaluated["unigram"]]} if "unigram" in evaluated else {}
    if not models:
        return "No model is evaluated yet."
    rows = []
    for (view, weights), of_seeds in models.items():
        pairs, losses = [value["pairs"] for value in of_seeds], [value["held_out"]["loss"] for value in of_seeds]
        figures = [_percent(each[name] for each in pairs) for name in ("babylm", "accuracy")]
        rows.append([view, weights, str(len(of_seeds)), f"{pairs[0]['pairs']:,}", *figures, _mean(losses, ".3f")])
    groups = [group for group in next(iter(models.values()))[0]["pairs"]["by"] if not group.startswith("UID:")]
    parts = [
        [group.partition(":")[2].replace("_", " ")]
        + [_percent(value["pairs"]["by"][group]["accuracy"] for value in of_seeds) for of_seeds in models.values()]
        for group in groups
    ]
    head = ["view", "weights", "seeds", "pairs", "BLiMP, BabyLM's mean, %", "BLiMP, all pairs, %", "held-out loss"]
    return f"""{table(head, *rows, left=2)}

- The causal view scores sentences by log-likelihood, the masked view by pseudo-log-likelihood.
- BabyLM's mean is over the 67 sets, and a tie counts as right ([evaluation](../../docs/evaluation.md#minimal-pairs)).
- Held-out loss: of 15% of the tokens, in nats. The masked view reads what is before and after them, the causal view
  only what is before, so the two do not compare.

{table(["part of BLiMP, %", *(" ".join(name).strip() for name in models)], *parts)}"""


def _runs(values: Values) -> str:
    if not (runs := values.get("runs")):
        return "No model is trained yet."
    rows = [
        [seed, f"{run['steps']:,} of {run['of']:,}", f"{run['tokens'] / 1e6:.1f}", f"{run['minutes']:.1f}"]
        + [f"{run['tokens'] / max(60 * run['minutes'], 1e-9):,.0f}"]
        + [f"{run[name]:.3f}" if name in run else "" for name in ("loss", "ema_loss")]
        for seed, run in sorted(runs.items())
    ]
    head = ["seed", "steps", "M tokens", "minutes", "tokens a second", "last loss", "last loss, averaged weights"]
    decision = ""
    if "seeds" in (probe := values.get("probe", {})):
        rate = f"{probe['tokens_per_second']:,.0f}"
        decision = f"After their first steps they read {rate} tokens a second, so {probe['seeds']} could continue."
    first = next(iter(runs.values()))
    return f"""{first["model"]} on {first["machine"]}, the seeds at the same time. Losses are of held-out text, with the
masks of training. {decision}

{table(head, *rows)}"""


def _percent(shares: Iterable[float]) -> str:
    return _mean([100 * share for share in shares], ".1f", 100)


def _mean(numbers: list[float], form: str, highest: float = math.inf) -> str:
    mean = mean_of(numbers, 0, highest)
    between = f" ({mean.interval[0]:{form}} to {mean.interval[1]:{form}})" if mean.interval else ""
    return f"{mean.mean:{form}}{between}"
