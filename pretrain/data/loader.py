"""Loader of one rank: builds its share of each global batch, in the row length and batch shape of the phase."""

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from data_prep.common.errors import UserError
from data_prep.format import Dataset
from pretrain.config import Config, MaskingConfig, StageSettings
from pretrain.data.batch import Batch, lay_out, max_documents
from pretrain.data.mixture import Mixture, MixturePosition
from pretrain.data.stream import Part
from pretrain.data.training_sources import Sources, row_stream
from pretrain.masking import Vocabulary, mask_rate
from pretrain.objectives import Objective, ObjectiveMixture, objective_of, shares_at
from pretrain.philox import derive_key

COMMON_RATE = 0.15  # of eval.masks common
_EVALUATION_SEED = 0  # held-out rows and masks are the same for every run, so that runs compare


@dataclass(frozen=True)
class BatchStage:
    """The steps after `after_step`, up to the next stage: rows of `seq_len` slots, and how a batch is split.

    A global batch has world_size * accumulation * micro rows. phase: the number of the phase; its first stage begins
    with it. restart: whether the stage begins by reading its data from a start.
    """

    after_step: int
    seq_len: int
    world_size: int
    accumulation: int
    micro: int
    phase: int = 0
    restart: bool = False

    @property
    def rows(self) -> int:
        """Rows of the global batch."""
        return self.world_size * self.rank_rows

    @property
    def rank_rows(self) -> int:
        """Rows of one rank's share."""
        return self.accumulation * self.micro

    def rank_bytes(self, predictions: int) -> int:
        """Bytes of the arrays of one rank's share (Batch), with room for `predictions` in a row."""
        bounds = max_documents(self.micro, self.seq_len) + 1
        return self.accumulation * (16 * self.micro * (self.seq_len + predictions) + 4 * bounds)

    @classmethod
    def of_run(cls, config: Config, world_size: int) -> tuple["BatchStage", ...]:
        """The stages of a run in order, the first from step 0.

        Raises UserError if the batch of a stage does not divide over the processes, or its micro-batch over objectives.
        """
        stages = []
        for stage in config.stages:
            phase = config.run_phases[stage.phase]
            divided, block = cls.divided(world_size, stage), phase.config.block_rows
            if divided.micro % block:
                of = f" of phase {phase.name}" if phase.name else ""
                raise UserError(
                    f"a micro-batch of {divided.micro} rows cannot be split into objective "
                    f"{phase.config.objective_text}{of}; make train.global_batch_size and train.micro_batch_size "
                    f"multiples of {block}, or choose shares that give whole rows, such as 0.25 and 0.75"
                )
            stages.append(replace(divided, restart=phase.restart and stage.after_step == phase.start))
        return tuple(stages)

    @classmethod
    def divided(cls, world_size: int, stage: StageSettings) -> "BatchStage":
        """Split the batches of a stage over `world_size` processes in micro-batches; by default, no accumulation.

        Raises UserError if the rows do not divide evenly; the message names the config key.
        """
        rows, key, micro = stage.global_batch_size, stage.key, stage.micro_batch_size
        if rows % world_size:
            raise UserError(
                f"{key} is {rows}, which {world_size} processes cannot share evenly; choose a multiple of {world_size}"
            )
        micro = min(micro or rows, rows // world_size)
        if rows % (world_size * micro):
            raise UserError(
                f"{key} ({rows}) is not a multiple of {world_size} processes times the "
                f"micro_batch_size ({micro}); change one of the two"
            )
        return cls(stage.after_step, stage.seq_len, world_size, rows // (world_size * micro), micro, stage.phase)


def stage_at(stages: Sequence[BatchStage], steps_done: int) -> tuple[BatchStage, BatchStage | None]:
    """The stage of the step after `steps_done` steps, and the previous stage if it ended exactly there."""
    number = max(n for n, stage in enumerate(stages) if stage.after_step <= steps_done)
    ended = stages[number - 1] if number and stages[number].after_step == steps_done else None
    return stages[number], ended


@dataclass(frozen=True)
class LoaderStep:
    """This rank's micro-batches of one global batch, the stream positions before and after, and the mask rate.

    shares: of the rows, for each objective of a mixture; empty without one.
    """

    batches: list[Batch]
    before: MixturePosition
    after: MixturePosition
    mask_rate: float
    shares: tuple[float, ...] = ()


class Loader:
    """Builds batches for one rank.

    Args:
        mixture: source of the rows.
        stages: row length and batch shape by step.
        vocabulary: the tokenizer's ids. objectives: what to predict, in each phase.
        mask_rate: the rate after a number of steps.
        shares: of a mixture's objectives after a number of steps.
        rank: this rank. Rows are assigned rank by rank, micro-batch by micro-batch.
    """

    def __init__(
        self,
        mixture: Mixture,
        stages: Sequence[BatchStage],
        vocabulary: Vocabulary,
        objectives: Sequence[Objective],
        mask_rate: Callable[[int], float],
        rank: int,
        shares: Callable[[int], tuple[float, ...]] | None = None,
    ):
        self.mixture, self._stages, self._rank = mixture, stages, rank
        self.vocabulary, self.objectives, self._mask_rate, self._shares = vocabulary, objectives, mask_rate, shares

    @classmethod
    def for_training(
        cls,
        config: Config,
        sources: Sources,
        stages: Sequence[BatchStage],
        rank: int,
        rate: float | None = None,
        shares: tuple[float, ...] = (),
    ) -> "Loader":
        """The loader of the training stream.

        Args:
            rate, shares: a fixed mask rate, and fixed shares of the objectives; the schedules by default.
        """
        data, seed = config.data, config.run.seed
        vocabulary = Vocabulary.of(sources.tokenizer)
        numbers = range(len(config.run_phases))
        objectives = [objective_of(config, vocabulary, seed, "train", phase=number) for number in numbers]
        flags = [objective_of(phase.config, vocabulary, seed, "train").flags for phase in config.run_phases]
        streams = [
            row_stream(
                dataset,
                seed,
                data.window_blocks,
                data.packing,
                number,
                flags=functools.reduce(operator.or_, (flags[n] for n in numbers if sources.weights[n][number])),
                substitute=derive_key(seed, "substitutes") if data.damage_budget else None,
                look_ahead=True,
                order=order,
            )
            for number, (dataset, order) in enumerate(zip(sources.datasets, sources.orders, strict=True))
        ]
        mixture = Mixture(streams, sources.weights, seed)
        rate_at = functools.partial(mask_rate, config) if rate is None else lambda _: rate
        of_step = (lambda _: shares) if shares else functools.partial(shares_at, config)
        return cls(mixture, stages, vocabulary, objectives, rate_at, rank, of_step)

    @classmethod
    def for_held_out(
        cls, config: Config, dataset: Dataset, stages: Sequence[BatchStage], rank: int, source: str | None = None
    ) -> "Loader":
        """The loader of the held-out set, or of one of its sources: damage is an error.

        Masks have the rate of the last step that draws masks at a rate. With `eval.masks: common`, the defaults of
        masking apply, so the masks are the same for every run.
        """
        phases = config.run_phases
        phase = next((phase for phase in reversed(phases) if phase.config.masks_at_a_rate), phases[-1])
        rate, masking = mask_rate(config, phase.end - 1), phase.config.masking
        if config.eval.masks == "common":
            rate, masking = COMMON_RATE, MaskingConfig(rate=COMMON_RATE)
        masking = masking.model_copy(update={"rate": rate})
        data, vocabulary = config.data, Vocabulary.of(dataset.manifest.tokenizer)
        objective = objective_of(config, vocabulary, _EVALUATION_SEED, "valid", masking=masking)
        settings = _EVALUATION_SEED, data.window_blocks, data.packing
        stream = row_stream(dataset, *settings, flags=objective.flags, source_name=source)
        stages = [replace(stage, phase=0, restart=False) for stage in stages]
        mixture = Mixture([stream], [[1.0]], _EVALUATION_SEED)
        return cls(mixture, stages, vocabulary, [objective], lambda _: rate, rank)

    def step(self, steps_done: int, position: MixturePosition) -> LoaderStep:
        """Build the batches of the step after `steps_done` steps, starting at their end position.

        Raises DamagedData if a block of the data is damaged and may not be replaced.
        """
        stage, parts, after = self._take(steps_done, position)
        rate, (objective, shares) = self._mask_rate(steps_done), self._objective(steps_done, stage.phase)
        return LoaderStep([*self._build(parts, stage, rate, objective)], position, after, rate, shares)

    def skip(self, steps_done: int, position: MixturePosition, steps: int, to: int) -> MixturePosition:
        """Position to resume from after `to` steps, past the rows of `steps` steps from `position`.

        `steps_done` is the number of steps before `position`.
        """
        for done in range(steps_done, steps_done + steps):
            _, _, position = self._take(done, position)
        last, (stage, ended) = stage_at(self._stages, max(0, steps_done + steps - 1))[0], stage_at(self._stages, to)
        return position.after_seq_len(last.seq_len) if ended or last.seq_len != stage.seq_len else position

    def examples(self, steps_done: int, position: MixturePosition) -> Iterator[list[Batch]]:
        """Micro-batches of the largest shapes after `steps_done` steps, with the rows at `position`.

        First those with the most slots, then those with the longest rows: two each, or one where a step has one. Every
        rank yields the same number of them.
        """
        now, ended = stage_at(self._stages, steps_done)
        read = ended or now  # the stage of the rows before `position`
        stages = [now, *(stage for stage in self._stages if stage.after_step > steps_done)]
        most = max(stages, key=lambda stage: (stage.micro * stage.seq_len, stage.seq_len))
        longest = max(stages, key=lambda stage: (stage.seq_len, stage.micro))
        for stage in (most, longest) if longest is not most else (most,):
            at = position if stage.seq_len == read.seq_len else position.after_seq_len(read.seq_len)
            parts, _ = self.mixture.take(at, stage.rows, stage.seq_len, stage.phase)
            objective = self.objectives[stage.phase]
            if isinstance(objective, ObjectiveMixture):
                objective = objective.largest(stage.seq_len)
            yield [*itertools.islice(self._build(parts, stage, self._mask_rate(steps_done), objective), 2)]

    def held_out(self, steps_done: int, max_rows: int, objective: int = 0) -> Iterator[Batch]:
        """This rank's batches over the first `max_rows` rows of epoch 0; the same number on every rank.

        Rows have the length of the last of the `steps_done` steps. objective: the number of the only one to ask for.
        """
        stage = replace(stage_at(self._stages, max(0, steps_done - 1))[0], accumulation=1)
        position, done = self.mixture.start(), 0
        while done < max_rows and position.sources[0].epoch == 0:
            parts, position = self.mixture.take(position, min(stage.rows, max_rows - done), stage.seq_len)
            parts = [part for part in parts if part.epoch == 0]
            done += stage.rows
            yield from self._build(parts, stage, self._mask_rate(steps_done), self._alone(objective))
        self.mixture.release()

    def samples(self, rows: int, seq_len: int, objective: int = 0) -> Batch:
        """The first rows of epoch 0, at most `rows`, with `seq_len` slots each: the same on every rank.

        objective: as in `held_out`.
        """
        parts, _ = self.mixture.take(self.mixture.start(), rows, seq_len)
        laid_out = lay_out([part for part in parts if part.epoch == 0], rows, seq_len, self.vocabulary)
        self.mixture.release()
        return laid_out.masked(self._alone(objective), self._mask_rate(0))

    def close(self) -> None:
        """Stop the reading threads."""
        self.mixture.close()

    def _take(self, steps_done: int, position: MixturePosition) -> tuple[BatchStage, list[Part], MixturePosition]:
        """The rows of the step after `steps_done` steps, and the position after them."""
        stage, ended = stage_at(self._stages, steps_done)
        before = position.after_seq_len(ended.seq_len) if ended and ended.seq_len != stage.seq_len else position
        if ended and stage.restart:
            before = before.restarted(self.mixture.sources_of(stage.phase))
        return stage, *self.mixture.take(before, stage.rows, stage.seq_len, stage.phase)

    def _objective(self, steps_done: int, phase: int) -> tuple[Objective, tuple[float, ...]]:
        """The objective of the step after `steps_done` steps, with the `shares` of LoaderStep."""
        objective = self.objectives[phase]
        if self._shares is None or not isinstance(objective, ObjectiveMixture):
            return objective, ()
        shares = self._shares(steps_done)
        return objective.with_shares(shares), shares

    def _alone(self, number: int) -> Objective:
        objective = self.objectives[0]
        return objective.alone(number) if isinstance(objective, ObjectiveMixture) else objective

    def _build(self, parts: list[Part], stage: BatchStage, rate: float, objective: Objective) -> Iterator[Batch]:
        """This rank's micro-batches of the rows of a global batch."""
        first = self._rank * stage.rank_rows
        for start in range(first, first + stage.rank_rows, stage.micro):
            rows = _rows(parts, start, stage.micro)
            yield lay_out(rows, stage.micro, stage.seq_len, self.vocabulary).masked(objective, rate)


def _rows(parts: Sequence[Part], first: int, count: int) -> list[Part]:
    """Rows first .. first + count - 1 of `parts`; fewer at their end."""
    starts = itertools.accumulate(map(len, parts), initial=0)
    cut = [part[max(first - n, 0) : max(first + count - n, 0)] for part, n in zip(parts, starts, strict=False)]
    return [rows for rows in cut if len(rows)]
