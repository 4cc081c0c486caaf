"""The page of the speedrun: ratios of times with intervals over seeds, the search, and each idea."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.harness import table
from benchmarks.speedrun_held_out import PASSAGE_WORDS, WORD_SHARE
from benchmarks.speedrun_recipes import IDEAS, OURS, SEARCH_RULE, SEQ_LEN, WARMUP, Idea, Setting
from benchmarks.speedrun_runs import Bench, Result
from evaluation.study.paired_statistics import mean_of, paired_differences

BySeed = dict[int, Result]


@dataclass
class Comparison:
    """All results: of the search by setting, of each side by seed, and of ideas by (recipe, change) and seed.

    engine: the usual recipe in Maskwright. The change of a recipe alone is empty.
    """

    bench: Bench
    unigram: float
    usual: Setting
    searched: dict[Setting, Result]
    trainer: BySeed = field(default_factory=dict)
    engine: BySeed = field(default_factory=dict)
    ours: BySeed = field(default_factory=dict)
    arms: dict[tuple[str, str], BySeed] = field(default_factory=dict)

    @property
    def target(self) -> float:
        """Mean bits per byte of the usual recipe in transformers.Trainer."""
        return mean_of(_bits(self.trainer)).mean

    @property
    def reached(self) -> bool:
        return all(result.reaches(self.target) for result in self.ours.values())


def ratio(slow: Mapping[int, float], fast: Mapping[int, float]) -> str:
    """Geometric mean of slow / fast over seeds, with Student's t interval of 95% on the logarithms."""
    mean = mean_of([math.log(slow[seed] / fast[seed]) for seed in slow])
    interval = f" ({math.exp(mean.interval[0]):.2f} to {math.exp(mean.interval[1]):.2f})" if mean.interval else ""
    return f"{math.exp(mean.mean):.2f}{interval}"


def page(results: Comparison) -> str:
    size, bench = results.bench.size, results.bench
    minus = mean_of([results.engine[seed].end.bits - result.end.bits for seed, result in results.trainer.items()])
    spread = mean_of(_bits(results.trainer)).interval
    return f"""# Time to a held-out loss

The target is the mean of the usual recipe in transformers.Trainer: {results.target:.4f}{_between(spread, "")} bits per
byte of held-out words. Token frequencies alone have {results.unigram:.4f}.

{_ratios(results)}

Ratios are geometric means over seeds, which pair the runs, with Student's t intervals of 95% on the logarithms. They
take the bits per byte to reach as exact, so the interval of the target is not part of them. In Maskwright the usual
recipe ends {minus.mean:+.4f}{_between(minus.interval)} bits per byte from the Trainer's value after as many steps.
"Recipe alone" ends where that run ends, and "together" at the target, so the product of the first two ratios need not
equal the third.

## Runs

{_runs(results)}

## Search of the usual recipe

{SEARCH_RULE} The best one is {results.usual}.

{table(["setting", *_END], *([str(setting), *_end(result)] for setting, result in results.searched.items()))}

{_ideas(results)}## Conditions

- Model: {size["layers"]} layers x {size["hidden"]}, without dropout, byte-level BPE of {bench.vocabulary:,}, rows of
  {SEQ_LEN}; {bench.threads} threads, one process, {bench.precision} on both sides. Seconds of training, without
  measurements and starts.
- Bits per byte: {WORD_SHARE:.0%} of the words of held-out passages of {PASSAGE_WORDS} words have [MASK] for each of
  their tokens; -log2 of the probabilities of all these tokens, divided by the UTF-8 bytes of the words. The words are
  the same for all tokenizers. transformers computes it for both sides. The Trainer's models read the passages with and
  without special tokens around them, and the lower value counts.
- The usual recipe: AdamW, linear schedule with {WARMUP:.0%} warm-up. The Trainer's rows are concatenated and cut as in
  run_mlm.py, so they have no padding. ModernBERT computes logits of masked tokens only (`sparse_prediction`). The
  Trainer's number of steps follows from a probe of its speed.
- Our recipe: the usual one with {", ".join(OURS)}. The time to the target is interpolated between measured points.
  The usual recipe masks single tokens, as run_mlm.py does; the words of the measure and of our recipe are masked whole.

{chr(10).join(f"- {name}: `{_changes(idea)}`" for name, idea in IDEAS.items())}
"""


def _ratios(results: Comparison) -> str:
    usual, engine = (_seconds(side) for side in (results.trainer, results.engine))
    own = mean_of(_bits(results.engine)).mean
    ours, ours_to_own = (_seconds_to(results.ours, bits) for bits in (results.target, own))
    rows = [
        ["engine alone: the usual recipe, as many steps", ratio(usual, engine)],
        [
            f"recipe alone: both in Maskwright, to the {own:.4f} of the usual recipe there",
            ratio(engine, ours_to_own) if ours_to_own else "not reached",
        ],
        ["together: to the target", ratio(usual, ours) if ours else "not reached"],
    ]
    text = "Not every seed of our recipe reaches the target."
    if ours:
        text = f"Our recipe reaches the target in {statistics.fmean(ours.values()) / 60:.1f} minutes (mean)."
    return f"{table(['', 'times as fast'], *rows)}\n\n{text}"


def _runs(results: Comparison) -> str:
    rows = []
    for side in (results.trainer, results.engine, results.ours):
        for seed, result in side.items():
            point = result.reaches(results.target) if side is results.ours else None
            reached = [f"{point.tokens / 1e6:.2f} M", f"{point.seconds:,.0f}"] if point else ["", ""]
            rows.append([result.name, str(seed), *_end(result), *reached])
    return table(["", "seed", *_END, "tokens to the target", "seconds to the target"], *rows)


def _ideas(results: Comparison) -> str:
    """One table: bits per byte of each change minus its recipe's, over the same seeds."""
    if not results.arms:
        return ""
    bits = {arm: {seed: result.end.bits for seed, result in side.items()} for arm, side in results.arms.items()}
    changed = [arm for arm in bits if arm[1]]
    minus = paired_differences([(bits[arm], bits[arm[0], ""]) for arm in changed])
    shown = {
        arm: f"{value.mean:+.4f}{_between(value.interval)}{', significant' if value.significant else ''}"
        for arm, value in zip(changed, minus, strict=True)
    }
    rows = []
    for arm, side in results.arms.items():
        mean = f"{statistics.fmean(bits[arm].values()):.4f}"
        rows.append([" ".join(arm).strip(), str(len(side)), mean, shown.get(arm, "")])
    return f"""## Each idea added alone and removed alone

Equal slots; less is better. Differences are means over seeds with Student's t intervals; Holm's procedure covers all
rows. An idea that needs fewer tokens may need more time a token: this table does not show it.

{table(["recipe", "seeds", "bits per byte", "minus the recipe"], *rows)}

"""


_END = ("tokens", "seconds", "bits per byte")


def _end(result: Result) -> list[str]:
    return [f"{result.end.tokens / 1e6:.2f} M", f"{result.end.seconds:,.0f}", f"{result.end.bits:.4f}"]


def _seconds(side: BySeed) -> dict[int, float]:
    return {seed: result.end.seconds for seed, result in side.items()}


def _seconds_to(side: BySeed, bits: float) -> dict[int, float] | None:
    """Seconds until these bits per byte by seed; None unless each seed reaches them."""
    points = {seed: result.reaches(bits) for seed, result in side.items()}
    seconds = {seed: point.seconds for seed, point in points.items() if point}
    return seconds if len(seconds) == len(side) else None


def _bits(side: BySeed) -> list[float]:
    return [result.end.bits for result in side.values()]


def _changes(idea: Idea) -> dict[str, object]:
    """Only what the idea changes."""
    return {name: value for name, value in vars(idea).items() if value != vars(Idea())[name]}


def _between(interval: tuple[float, float] | None, sign: str = "+") -> str:
    return f" ({interval[0]:{sign}.4f} to {interval[1]:{sign}.4f})" if interval else ""
