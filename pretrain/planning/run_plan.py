"""Plan of a run before its start: GPU memory, tokens, operations, and the largest micro-batch that fits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.format import TokenizerInfo
from pretrain.config import OBJECTIVES, Config, View
from pretrain.data import BatchStage, Filling, Sources
from pretrain.kernels import ComputeBackends
from pretrain.masking import Vocabulary
from pretrain.model import EncoderCosts, EncoderShape, Sizes, describe_model
from pretrain.objectives import objective_of, predicted_share, shares_at
from pretrain.planning.speed import Rate, RunTime
from pretrain.planning.training_memory import GpuMemory, Memory, element_size, pass_items, peak_bytes, states

_RATES = 101  # steps over which a changing mask rate is averaged
_SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


@dataclass(frozen=True)
class StagePlan:
    """A stage of the run.

    Attributes:
        phase: the name of its phase; "" in a run without phases.
        steps: number of steps in this stage. tokens: special tokens count, padding does not.
        flops: model operations for these tokens; None if not known.
        micro_batch_size: rows of one pass on one process. accumulation: passes of a step.
        memory: memory of one process. shares: of the rows, by data set; empty without data.
    """

    phase: str
    steps: int
    seq_len: int
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    tokens: float
    flops: float | None
    memory: tuple[Memory, ...]
    shares: dict[str, float]

    @property
    def device_bytes(self) -> int:
        """Peak memory of a GPU."""
        return peak_bytes(self.memory)

    @property
    def host_bytes(self) -> int:
        """Host memory of each process."""
        return sum(item.host for item in self.memory)


@dataclass(frozen=True)
class Choice:
    """A change of the config, as overrides, with the largest micro-batch that fits; None if none fits."""

    change: str
    micro_batch_size: int | None
    device_bytes: int


@dataclass(frozen=True)
class RunPlan:
    """A run on `processes` processes.

    epochs: by data set; None without data.
    activations_known: whether the memory includes activations; not for `arch: auto`.
    gpu: its memory; None if not known.
    choices: micro-batches that fit, with the unchanged config and with each change that saves memory.
    rate: the speed; None if not known.
    automatic: whether the micro-batch is the largest that fits, as the config sets none.
    """

    processes: int
    parameters: int
    stages: tuple[StagePlan, ...]
    epochs: dict[str, float] | None
    activations_known: bool
    gpu: GpuMemory | None
    choices: tuple[Choice, ...]
    rate: Rate | None
    automatic: bool

    @property
    def largest(self) -> StagePlan:
        """The stage that needs the most memory."""
        return max(self.stages, key=lambda stage: stage.device_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether the run fits into the memory of the GPU; None if not known."""
        if self.gpu is None or (not self.activations_known and self.largest.device_bytes <= self.gpu.usable):
            return None
        return self.largest.device_bytes <= self.gpu.usable

    @property
    def tokens(self) -> float:
        return sum(stage.tokens for stage in self.stages)

    @property
    def flops(self) -> float | None:
        known = [stage.flops for stage in self.stages if stage.flops is not None]
        return sum(known) if known else None

    @property
    def time(self) -> RunTime | None:
        """The time of all steps; None if the speed is not known. Raises UserError if it needs unknown operations."""
        return self.rate.time(self.tokens, self.flops, self.processes) if self.rate else None


class Planner:
    """Plans a config, and the memory of variants of it, for the same vocabulary and data; `sizes`: of the parameters.

    Args:
        sources: the data. With None, each row is one document without padding.
        vocab_size: vocabulary size of the tokenizer, if `sources` is None.

    Raises UserError if the model or the objective is invalid.
    """

    def __init__(self, config: Config, sources: Sources | None, vocab_size: int | None = None):
        unknown = TokenizerInfo("", {}, vocab_size or 0, _SPECIAL_IDS, sorted(_SPECIAL_IDS.values()), "##")
        tokenizer = sources.tokenizer if sources else unknown
        self._config, self._sources = config, sources
        description = describe_model(config, tokenizer)
        self._costs = EncoderCosts.of(description)
        self.sizes = self._costs.sizes if self._costs else _sizes_of_auto(description)
        vocabulary, self._phases = Vocabulary.of(tokenizer), config.run_phases
        numbers = range(len(self._phases))
        self._objectives = [objective_of(config, vocabulary, config.run.seed, "train", phase=n) for n in numbers]
        self._filled: dict[tuple[int, int], list[Filling]] = {}

    @property
    def shape(self) -> EncoderShape | None:
        """The shape of the model; None for `arch: auto`."""
        return self._costs.shape if self._costs else None

    def plan(self, processes: int, gpu: GpuMemory | None = None, rate: Rate | None = None) -> RunPlan:
        """Plan the run on `processes` processes with the memory of a GPU and a speed, if they are known.

        Raises UserError if a batch does not divide over the processes.
        """
        config, steps = self._config, self._config.train.steps
        automatic = gpu is not None and config.train.micro_batch_size is None
        if gpu and automatic:
            config = with_micro_batch(config, self.largest_micro_batch(processes, gpu))
        stages = BatchStage.of_run(config, processes)
        ends = [*(stage.after_step for stage in stages[1:]), steps]
        counts = [max(0, min(end, steps) - stage.after_step) for stage, end in zip(stages, ends, strict=True)]
        pairs = zip(stages, counts, strict=True)
        planned = [self._stage(stage, count, processes, gpu) for stage, count in pairs if count]
        return RunPlan(
            processes,
            self.sizes.total,
            tuple(planned),
            self._epochs(stages, counts) if self._sources else None,
            self._costs is not None,
            gpu,
            tuple(self._choices(processes, gpu)) if gpu else (),
            rate,
            automatic,
        )

    def largest_micro_batch(self, processes: int, gpu: GpuMemory) -> int:
        """The most rows of a micro-batch that fit into the memory of a GPU; the fewest that are valid if none fit.

        For `arch: auto`, whose activations are not known, without them.

        Raises UserError if a batch does not divide over the processes.
        """
        BatchStage.of_run(self._config, processes)
        fitting, _ = self._largest(self._config, processes, gpu)
        return fitting or micro_batch_sizes(self._config, processes)[-1]

    def _largest(self, config: Config, processes: int, gpu: GpuMemory) -> tuple[int | None, int]:
        """The largest micro-batch that fits, None if none does, and the bytes of the last one that was tried."""
        needed = 0
        for micro in micro_batch_sizes(config, processes):
            tried = with_micro_batch(config, micro)
            stages = BatchStage.of_run(tried, processes)
            needed = max(peak_bytes(self._memory(tried, stage, processes, gpu)) for stage in stages)
            if needed <= gpu.usable:
                return micro, needed
        return None, needed

    def _choices(self, processes: int, gpu: GpuMemory) -> Iterator[Choice]:
        for change, changed in _changes(self._config):
            yield Choice(change, *self._largest(changed, processes, gpu))

    def _memory(self, config: Config, stage: BatchStage, processes: int, gpu: GpuMemory | None) -> tuple[Memory, ...]:
        """Memory of one process in a stage."""
        rows, seq_len, of_row = stage.micro, stage.seq_len, self._objectives[stage.phase].slots(stage.seq_len)
        slots, predictions, data = rows * seq_len, rows * of_row, stage.rank_bytes(of_row)
        items = states(config, self.sizes, processes)
        if self._costs is None:
            return (*items, Memory("batches", data))
        train, parts = config.train, self._phases[stage.phase].config.objectives
        activations = self._costs.activations(
            slots,
            predictions,
            seq_len,
            element_size(train.precision),
            fused=train.fused_kernels is True,  # auto may fall back to plain
            checkpointing=train.activation_checkpointing,
            masked=ComputeBackends.of(config, "cuda").attention == "sdpa",
            gpu_bytes=gpu.total if gpu else None,
            bidirectional=all(OBJECTIVES[part.kind].view is View.BIDIRECTIONAL for part in parts),
        )
        return (*items, *pass_items(activations, self.sizes, config, data))

    def _stage(self, stage: BatchStage, steps: int, processes: int, gpu: GpuMemory | None) -> StagePlan:
        tokens, flops = self._of_row(stage)
        rows, memory = steps * stage.rows, self._memory(self._config, stage, processes, gpu)
        name = self._phases[stage.phase].name
        sizes = (name, steps, stage.seq_len, stage.rows, stage.micro, stage.accumulation)
        shares = self._sources.mixture_of(stage.phase) if self._sources else {}
        return StagePlan(*sizes, rows * tokens, rows * flops if self._costs else None, memory, shares)

    def _of_row(self, stage: BatchStage) -> tuple[float, float]:
        """Mean (tokens, operations) of a row in a phase. The operations of `arch: auto` are not known, and 0."""
        phase = self._phases[stage.phase]
        steps = np.linspace(phase.start, phase.end - 1, _RATES)
        rate = float(np.mean([predicted_share(self._config, int(step)) for step in steps]))
        causal = float(np.mean([self._causal_share(int(step)) for step in steps]))
        tokens, flops = 0.0, 0.0
        for filling in self._fillings(stage):
            tokens += filling.share * filling.tokens / filling.rows
            if self._costs:
                predictions = round(rate * filling.ordinary)
                ways = [self._costs.step_flops(filling.lengths, predictions, causal=way) for way in (False, True)]
                flops += filling.share * ((1 - causal) * ways[0] + causal * ways[1]) / filling.rows
        return tokens, flops

    def _causal_share(self, step: int) -> float:
        """The share of the rows with a causal view."""
        shares, kinds = shares_at(self._config, step), self._config.objective_kinds
        return sum(share for share, kind in zip(shares, kinds, strict=True) if kind.causal)

    def _fillings(self, stage: BatchStage) -> list[Filling]:
        if self._sources is None:
            return [Filling("", 1.0, np.array([stage.seq_len]), rows=1, seq_len=stage.seq_len)]
        key = stage.phase, stage.seq_len
        if key not in self._filled:
            self._filled[key] = self._sources.of_phase(stage.phase).fillings(self._config.data, stage.seq_len)
        return self._filled[key]

    def _epochs(self, stages: Sequence[BatchStage], counts: Sequence[int]) -> dict[str, float]:
        epochs: dict[str, float] = {}
        for stage, steps in zip(stages, counts, strict=True):
            for source in self._fillings(stage):
                read = steps * stage.rows * source.share / source.epoch_rows
                epochs[source.name] = epochs.get(source.name, 0.0) + read
        return epochs


def micro_batch_sizes(config: Config, processes: int) -> list[int]:
    """Micro-batch sizes that are valid in every stage, largest first."""
    own = next((n for n, phase in enumerate(config.phases) if n and "micro_batch_size" in phase.train), None)
    rows = [stage.global_batch_size // processes for stage in config.stages[:own]]  # later ones have their own size
    fitting = [micro for micro in range(min(rows), 0, -1) if all(count % micro == 0 for count in rows)]
    block = math.lcm(*(phase.config.block_rows for phase in config.run_phases))
    return [micro for micro in fitting if micro % block == 0] or fitting


def with_micro_batch(config: Config, rows: int) -> Config:
    """The config with this train.micro_batch_size."""
    return _with(config, train={"micro_batch_size": rows})


def _changes(config: Config) -> Iterator[tuple[str, Config]]:
    yield "as it is", config
    native = config.model.arch != "auto"
    if native and not config.train.activation_checkpointing:
        yield "train.activation_checkpointing=true", _with(config, train={"activation_checkpointing": True})
    for stage in (1, 2, 3):
        if config.zero.stage < stage and not (stage == 3 and config.train.compile is True):
            zero = {"stage": stage, "overlap": True}
            yield f"zero.stage={stage}", _with(config, zero=zero)
            if native:
                both = _with(config, zero=zero, train={"activation_checkpointing": True})
                yield f"zero.stage={stage} train.activation_checkpointing=true", both
    if config.zero.stage and config.zero.offload == "none":
        yield "zero.offload=cpu", _with(config, zero={"offload": "cpu", "overlap": True})


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    values = config.model_dump(mode="json", exclude_unset=True)
    for first in values.get("phases", [])[:1]:  # its size, which the config has too, would win
        first.get("train", {}).pop("micro_batch_size", None)
    return Config.model_validate(values | {name: values.get(name, {}) | new for name, new in sections.items()})


def _sizes_of_auto(description: dict[str, Any]) -> Sizes:
    """Parameter sizes of any transformers model. Builds the model without weights."""
    import torch

    from pretrain.model import build
    from pretrain.optim import described

    with torch.device("meta"):
        parameters = described(build(description, seed=0))
    kinds = ("matrix", "filter", "embedding", "vector")
    by_kind = {kind: tuple(p.parameter.numel() for p in parameters if p.kind == kind) for kind in kinds}
    return Sizes(by_kind, tuple(p.layer for p in parameters if p.kind == "matrix"))
