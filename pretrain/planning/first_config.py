"""Choose a first config for a text and a machine: model, vocabulary and number of steps for a time limit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pretrain.config import Config
from pretrain.config_files import on_one_line
from pretrain.model import peak_tflops
from pretrain.planning.host_time import BUSY, MOST_EPOCHS, gpu_seconds, host_seconds
from pretrain.planning.run_plan import Planner

_CPU_SHARE = 0.35  # of the speed of matrix products that a training step is assumed to reach
_UNKNOWN_GPU = 50.0  # TFLOP/s
_TOKENS_PER_WEIGHT = 4  # at least; it is more in configs/demo.yaml and configs/modernbert-mini.yaml
_FEWEST_STEPS = 100
_HIGHEST_LR = 4e-3  # of all sizes
_HELD_OUT = 10  # documents; each is held out by chance


@dataclass(frozen=True)
class Size:
    """A ModernBERT with its batches. The first two are the models of configs/demo.yaml and modernbert-mini.yaml."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    seq_len: int
    rows: int
    lr: float

    @property
    def weights(self) -> int:
        """Elements of the matrices of the layers."""
        return self.layers * self.hidden * (4 * self.hidden + 3 * self.intermediate)

    @property
    def doubled(self) -> "Size":
        """The same model with twice the rows. The learning rate grows with the root of the batch, up to a limit.

        (Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022.)
        """
        return replace(self, rows=2 * self.rows, lr=min(_HIGHEST_LR, round(self.lr * math.sqrt(2), 4)))


SIZES = (
    Size(3, 128, 2, 192, seq_len=64, rows=32, lr=4e-3),
    Size(4, 256, 4, 384, seq_len=128, rows=32, lr=2e-3),
    Size(7, 256, 4, 384, seq_len=128, rows=64, lr=2e-3),
    Size(12, 384, 6, 576, seq_len=256, rows=128, lr=2e-3),
    Size(19, 512, 8, 768, seq_len=512, rows=128, lr=1.5e-3),
    Size(22, 768, 12, 1152, seq_len=512, rows=256, lr=1e-3),
)


@dataclass(frozen=True)
class Machine:
    """The machine. memory: bytes of the host. gpus: their names. bf16: whether all GPUs compute in it.

    tflops: speed of matrix products, on all cores or on all GPUs.
    """

    cores: int
    memory: int
    gpus: tuple[str, ...]
    tflops: float
    bf16: bool = True

    @property
    def precision(self) -> str:
        """The value of train.precision."""
        return "fp32" if not self.gpus else "bf16" if self.bf16 else "fp16"

    @property
    def processes(self) -> int:
        """Training processes: one for each GPU, or one on the CPU."""
        return max(1, len(self.gpus))

    def step_seconds(self, flops: float, size: Size) -> tuple[float, float]:
        """The estimated time of a step with these operations, and of the devices' part of it."""
        if not self.gpus:
            seconds = flops / (_CPU_SHARE * self.tflops * 1e12)
            return seconds, seconds
        computing = gpu_seconds(flops, size.hidden, self.tflops)
        return max(host_seconds(size.layers), computing), computing


_COMMENTS = {
    "data": "Rows of this many tokens. Documents share rows, and do not see each other.",
    "masking": "30% of the tokens are hidden, and the model predicts them.",
    "model": "A ModernBERT. A larger model learns more in a longer time.",
    "optim": "If the loss rises or is not finite, halve lr.",
    "schedule": "lr rises for warmup_steps, stays, and falls in the last 30% of the steps.",
    "train": "The time of the run grows with steps. global_batch_size is rows a step.",
    "checkpoint": "After a stop or a crash, the same command resumes from the newest checkpoint.",
    "eval": "Loss on held-out text.",
    "track": "MLflow, in the file mlflow.db of this folder.",
}


@dataclass(frozen=True)
class FirstConfig:
    """The choice.

    bytes: memory of a process. tokens, minutes: an estimate for all steps. epochs: how often the text is read.
    busy: the devices' share of a step, an estimate. values: of the config file.
    """

    size: Size
    vocab_size: int
    steps: int
    parameters: int
    bytes: int
    tokens: int
    minutes: float
    epochs: float
    busy: float
    valid_fraction: float
    values: dict[str, Any]

    @property
    def batch_note(self) -> str | None:
        """Why a step has so many rows, if the host decides how long it takes; None if the devices do."""
        rows = self.values["train"]["global_batch_size"]
        if self.busy < BUSY:
            waits = f"The GPU waits for the host in about {1 - self.busy:.0%} of a step (estimated)"
            return f"{waits}: the text is too short for more than {rows:,} rows a step, or a larger model."
        if self.size not in SIZES:
            waits = "The GPU would wait for the host with fewer rows a step (estimated)"
            return f"{waits}: there are {rows:,}, with a learning rate of {self.size.lr:g}."
        return None

    def text(self, notes: Sequence[str]) -> str:
        """The config file: `notes` as comments, then each section on a line with its comment."""
        lines = [f"# {note}".rstrip() for note in notes]
        for name, section in self.values.items():
            lines += [f"# {_COMMENTS[name]}"] if name in _COMMENTS else []
            lines.append(f"{name}: {on_one_line(section, sort_keys=False)}")
        return "\n".join(lines) + "\n"


def gpu_tflops(names: Sequence[str]) -> float:
    """The bf16 peak of GPUs by their data sheets; for an unknown GPU, a low value."""
    return sum(peak_tflops(name) or _UNKNOWN_GPU for name in names)


def vocabulary_size(tokens: int, has_gpu: bool) -> int:
    """A power of two near a 200th of the tokens of the text, from 1,024 to 8,192, or to 32,768 with a GPU."""
    return int(min(2 ** max(10, round(math.log2(max(1, tokens) / 200))), 32768 if has_gpu else 8192))


def choose_first_config(
    name: str, tokens: int, words: int, documents: int, machine: Machine, minutes: float
) -> FirstConfig:
    """The largest model that can read 4 tokens for each weight in the time, and in 40 epochs of the text.

    If no model fits, it is the smallest one. It trains for 100 steps at least, which may take longer.

    While GPUs wait for the host in more than half of a step, the batch is doubled, which costs no time. For a short
    text it stays, as more steps learn more from the same epochs.

    Args:
        name: of the model, for its folders. tokens, words, documents: rough numbers for the text.
        minutes: time that the steps may take.
    """
    vocab_size = vocabulary_size(tokens, bool(machine.gpus))
    share = min(0.05, max(0.001, 100_000 / max(1, words)))
    share = max(share, min(0.5, _HELD_OUT / max(1, documents)))

    def choice(size: Size) -> FirstConfig:
        rows = _values(name, size, 100, machine)["train"]["global_batch_size"]
        planner = Planner(Config.model_validate(_values(name, size, 100, machine)), None, vocab_size)
        plan = planner.plan(machine.processes)
        (seconds, computing), read = machine.step_seconds((plan.flops or 0) / 100, size), rows * size.seq_len
        steps = max(_FEWEST_STEPS, int(min(60 * minutes / seconds, MOST_EPOCHS * tokens / read)) // 10 * 10)
        values = _values(name, size, steps, machine)
        took, epochs = steps * seconds / 60, steps * read / max(1, tokens)
        if computing < BUSY * seconds and 2 * epochs <= MOST_EPOCHS:
            return choice(size.doubled)
        return FirstConfig(
            size,
            vocab_size,
            steps,
            plan.parameters,
            plan.largest.device_bytes,
            steps * read,
            took,
            epochs,
            computing / seconds,
            share,
            values,
        )

    smallest, *larger = map(choice, SIZES)
    fitting = [
        option
        for option in larger
        if option.tokens >= _TOKENS_PER_WEIGHT * option.size.weights and option.minutes <= minutes
        if machine.gpus or option.bytes <= machine.memory
    ]
    return (fitting or [smallest])[-1]


def _values(name: str, size: Size, steps: int, machine: Machine) -> dict[str, Any]:
    model = {key: getattr(size, key) for key in ("layers", "hidden", "heads", "intermediate")}
    rows = math.lcm(size.rows, machine.processes)  # processes share a batch equally
    return {
        "run": {"dir": f"runs/{name}", "seed": 0},
        "data": {"train": f"data/{name}/train", "valid": f"data/{name}/valid", "seq_len": size.seq_len},
        "masking": {"strategy": "token", "rate": 0.3},
        "model": {"arch": "modernbert", "size": model},
        "optim": {"name": "muon", "lr": size.lr, "betas": [0.9, 0.98]},
        "schedule": {"kind": "wsd", "warmup_steps": max(10, min(1000, steps // 25)), "decay_fraction": 0.3},
        "train": {"steps": steps, "global_batch_size": rows, "precision": machine.precision},
        "checkpoint": {"every_minutes": 5, "keep": 2},
        "eval": {"every_steps": max(10, steps // 10), "rows": 512},
        "track": {"experiment": name},
    }
