"""Speeds to expect on one H100: measured figures of earlier code, less what each change since then should save.

    python -m benchmarks.gpu_prediction

Nothing is measured here. benchmarks/gpu_table.py shows the predictions next to its figures.
"""

from typing import NamedTuple

from benchmarks.harness import options, run, table, write_page

Range = tuple[float, float]  # least and most
PARTS = ("products", "attention", "elementwise", "cross-entropy", "optimizer")
M1024, M8192, M256K, BASE, LARGE = (
    "modernbert-base-1024",
    "modernbert-base-8192",
    "mmbert-base-1024",
    "base-512",
    "large-512",
)
MODERN = (M1024, M8192, M256K)


class Before(NamedTuple):
    """A model on one H100 on 2026-11-26: real tokens a second, and milliseconds of a step of 65,536 slots.

    parts: as far as measured rates explain the step. floor: the least that they allow. aim: real tokens a second.
    """

    rate: int
    step: float
    parts: tuple[Range, ...]
    floor: int
    aim: str


BEFORE = {
    M1024: Before(
        405_638, 161.5, ((79.2,) * 2, (46, 50), (27.9,) * 2, (2.7,) * 2, (2.6,) * 2), 108, "470,000, then 540,000"
    ),
    M8192: Before(360_059, 181.2, ((79.6,) * 2, (67, 74), (27.9,) * 2, (2.7,) * 2, (2.6,) * 2), 113, "450,000"),
    M256K: Before(317_002, 206.6, ((109.1,) * 2, (46, 50), (27.9,) * 2, (16.9,) * 2, (5.3,) * 2), 150, "340,000"),
    BASE: Before(657_097, 99.7, ((52.3,) * 2, (23, 26), (17.7,) * 2, (0.8,) * 2, (1.9,) * 2), 70, "745,000"),
    LARGE: Before(228_521, 286.6, ((178.6,) * 2, (60, 68), (48.8,) * 2, (0.8,) * 2, (5.8,) * 2), 228, "252,000"),
}


class Saving(NamedTuple):
    """Milliseconds that a change should save in a part of a step, and the probability that it does."""

    change: str
    part: str
    probability: float
    of: dict[str, Range]


SAVINGS = (
    Saving("longest document as bound of flash attention", "attention", 0.85, {M8192: (7, 11)}),
    Saving("Triton kernel for local layers", "attention", 0.55, dict.fromkeys(MODERN, (14, 21))),
    Saving(
        "queries of the last layer where something is predicted",
        "attention",
        0.8,
        dict.fromkeys((M1024, M256K, BASE), (1, 1)) | {M8192: (2, 2), LARGE: (1.3, 1.3)},
    ),
    Saving(
        "the same, matrix products",
        "products",
        0.8,
        dict.fromkeys(MODERN, (0.2, 0.2)) | {BASE: (0.3, 0.3), LARGE: (0.6, 0.6)},
    ),
    Saving("last residual sum in the next norm's kernel", "elementwise", 0.9, dict.fromkeys(MODERN, (0.7, 0.7))),
    Saving("gradients of biases in the norm's kernel", "elementwise", 0.8, {BASE: (2.0, 2.0), LARGE: (5.4, 5.4)}),
    Saving(
        "loss: 6.1 bytes of traffic for a logit, not 8, in larger parts",
        "cross-entropy",
        0.7,
        {M1024: (0.7, 0.7), M8192: (0.7, 0.7), M256K: (6.3, 6.3), BASE: (0.2, 0.2), LARGE: (0.2, 0.2)},
    ),
    Saving(
        "AdamW from gradients in bf16: 34 bytes a weight, not 52 (the benchmark clipped in a separate pass)",
        "optimizer",
        0.8,
        {M1024: (0.9, 0.9), M8192: (0.9, 0.9), M256K: (1.8, 1.8), BASE: (0.7, 0.7), LARGE: (2.0, 2.0)},
    ),
)
# By the share that it should save of the layers that use it, and with gradients in one matrix.
FLASH_3 = Saving(
    "FlashAttention 3 if it is installed; of it, gradients in one matrix: 0.5, 2.4 of BERT-base, 6.4 of BERT-large",
    "attention",
    0.7,
    {M1024: (4.5, 7.5), M8192: (5.5, 10.5), M256K: (4.5, 7.5), BASE: (8.4, 12.4), LARGE: (21.4, 33.4)},
)


def main() -> None:
    args = options(__doc__, "gpu_prediction").parse_args()
    write_page(args.out, page(), ("torch",))


def before(case: str) -> dict[str, str]:
    """The step of earlier code and its parts, in milliseconds."""
    parts = zip(PARTS, BEFORE[case].parts, strict=True)
    return {"step": f"{BEFORE[case].step}"} | {part: shown(ms) for part, ms in parts}


def predicted(case: str) -> dict[str, str]:
    """The step and its parts with the present code, in milliseconds."""
    parts = zip(PARTS, BEFORE[case].parts, strict=True)
    return {"step": shown(step(case))} | {part: shown(less(ms, saved(case, part))) for part, ms in parts}


def step(case: str) -> Range:
    """Milliseconds of a step with the present code: if every change saves its most, and its least."""
    return less((BEFORE[case].step,) * 2, saved(case))


def saved(case: str, part: str | None = None) -> Range:
    """Milliseconds that all changes save, in a part or in a step."""
    ranges = [saving.of[case] for saving in SAVINGS if case in saving.of and part in (None, saving.part)]
    return sum(least for least, _ in ranges), sum(most for _, most in ranges)


def less(ms: Range, saving: Range) -> Range:
    return ms[0] - saving[1], ms[1] - saving[0]


def likely(case: str) -> float:
    """Milliseconds of a step with the mean of each saving, by its probability."""
    means = [saving.probability * sum(saving.of[case]) / 2 for saving in SAVINGS if case in saving.of]
    return BEFORE[case].step - sum(means)


def tokens(case: str, ms: float) -> str:
    """Real tokens per second, in thousands, of a step that takes so long."""
    return f"{BEFORE[case].rate * BEFORE[case].step / ms / 1000:,.0f}k"


def rate_range(case: str, ms: Range) -> str:
    """Tokens per second for a range of milliseconds; one number if both are equal."""
    return " to ".join(dict.fromkeys((tokens(case, ms[1]), tokens(case, ms[0]))))


def shown(ms: Range) -> str:
    """A range, rounded to a tenth; one number if both are equal."""
    least, most = (f"{round(end, 1):g}" for end in ms)
    return least if least == most else f"{least} to {most}"


def page() -> str:
    """See the module."""
    models = []
    for case, was in BEFORE.items():
        all_work, with_flash = step(case), less(step(case), FLASH_3.of[case])
        middle = (likely(case),) * 2
        cells = [f"{was.step}", f"{was.floor}", *map(shown, (middle, all_work, with_flash))]
        rates = [rate_range(case, ms) for ms in (middle, all_work, with_flash)]
        models.append([case, *cells, f"{was.rate / 1000:,.0f}k", was.aim, *rates])
    changes = [
        [
            saving.change,
            saving.part,
            f"{saving.probability:.0%}",
            *(shown(saving.of[case]) if case in saving.of else "" for case in BEFORE),
        ]
        for saving in (*SAVINGS, FLASH_3)
    ]
    parts = [
        [part, *(f"{before(case)[part]}; {predicted(case)[part]}" for case in BEFORE)] for part in ("step", *PARTS)
    ]
    forecasts = ["likely", "all work", "all work, with FlashAttention 3"]
    titles = ["model", "ms before", "floor", *(f"ms: {name}" for name in forecasts), "tokens/s before", "aim"]
    return f"""# Predictions for one H100

Not measured on a GPU. "Before" was measured on 2026-11-26 with earlier code ([gpu_table](gpu_table.md)); its parts are
explained by measured rates. "Likely" subtracts what each change since then should save, on average, times the
probability that it saves anything. "All work" subtracts all savings: their most and their least. FlashAttention 3 needs
its package. The floor is the least that the measured rates allow. A step has 65,536 slots. Tokens/s are real tokens.

{table([*titles, *(f"tokens/s: {name}" for name in forecasts)], *models)}

Milliseconds of a step that each change should save:

{table(["change", "part", "probability", *BEFORE], *changes, left=2)}

Milliseconds of each part, before; if all changes but FlashAttention 3 work:

{table(["part", *BEFORE], *parts)}
"""


if __name__ == "__main__":
    run(main)
