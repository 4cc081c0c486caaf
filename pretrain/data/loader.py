"""Loader of one rank: builds its share of each global batch, in the row length and batch shape of the phase."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_prep.errors import UserError
from data_prep.format import Dataset
from pretrain.config import Config, MaskingConfig
from pretrain.data.batch import Batch, build_batch, max_documents
from pretrain.data.mixture import Mixture, MixturePosition
from pretrain.data.stream import Part
from pretrain.data.training_sources import Sources, row_stream
from pretrain.masking import Vocabulary, mask_rate
from pretrain.objectives import Objective, ObjectiveMixture, objective_of, shares_at, with_factors
from pretrain.philox import derive_key

_EVALUATION_SEED = 0  # held-out rows and masks are the same for every run, so that runs compare


@dataclass(frozen=True)
class BatchPhase:
    """The steps after `after_step`, up to the next phase: rows of `seq_len` slots, and how a batch is split.

    A global batch has world_size * accumulation * micro rows.
    """

    after_step: int
    seq_len: int
    world_size: int
    accumulation: int
    micro: int

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
    def of_run(cls, config: Config, world_size: int) -> tuple["BatchPhase", ...]:
        """The phases of a run in order, the first from step 0.

        Raises:
            UserError: if the batch of a phase does not divide over the processes, or its micro-batch over objectives.
        """
        phases, block = tuple(cls.divided(world_size, *astuple(stage)) for stage in config.stages), config.block_rows
        if uneven := next((phase.micro for phase in phases if phase.micro % block), None):
            raise UserError(
                f"a micro-batch of {uneven} rows cannot be split into objective {config.objective_text}; make "
                f"batch and train.micro_batch_size multiples of {block}, or choose shares that give whole rows"
            )
        return phases

    @classmethod
    def divided(
        cls, world_size: int, after_step: int, seq_len: int, rows: int, micro: int | None, key: str = ""
    ) -> "BatchPhase":
        """Split `rows` over `world_size` processes in micro-batches of `micro` rows (None: no accumulation).

        Raises:
            UserError: if the rows do not divide evenly; the message names the config key `key`.
        """
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
        return cls(after_step, seq_len, world_size, rows // (world_size * micro), micro)


def stage_at(stages: Sequence[BatchPhase], steps_done: int) -> tuple[BatchPhase, BatchPhase | None]:
    """The phase of the step after `steps_done` steps, and the previous phase if it ended exactly there."""
    number = max(n for n, stage in enumerate(stages) if stage.after_step <= steps_done)
    ended = stages[number - 1] if number and stages[number].after_step == steps_done else None
    return stages[number], ended


@dataclass(frozen=True)
class LoaderStep:
    """This rank's micro-batches of one global batch, the stream positions before and after, and the mask rate.

    shares: of the rows, for each objective of a mixture; empty without one.
    factors: digest of the factors on the weights of ids; empty without them.
    """

    batches: list[Batch]
    before: MixturePosition
    after: MixturePosition
    mask_rate: float
    shares: tuple[float, ...] = ()
    factors: str = ""


class Loader:
    """Builds batches for one rank.

    Args:
        mixture: source of the rows.
        stages: row length and batch shape by step.
        vocabulary, objective: what to predict. mask_rate: the rate after a number of steps.
        shares: of a mixture's objectives after a number of steps.
        rank: this rank. Rows are assigned rank by rank, micro-batch by micro-batch.

    Attributes:
        factors: after a number of steps, the factors [size] on the weights of ids in masking; None: all are 1.
    """

    def __init__(
        self,
        mixture: Mixture,
        stages: Sequence[BatchPhase],
        vocabulary: Vocabulary,
        objective: Objective,
        mask_rate: Callable[[int], float],
        rank: int,
        shares: Callable[[int], tuple[float, ...]] | None = None,
    ):
        self.mixture, self._stages, self._rank = mixture, stages, rank
        self.vocabulary, self.objective, self._mask_rate, self._shares = vocabulary, objective, mask_rate, shares
        self.factors: Callable[[int], NDArray[np.float32]] | None = None

    @classmethod
    def for_training(
        cls,
        config: Config,
        sources: Sources,
        stages: Sequence[BatchPhase],
        rank: int,
        rate: float | None = None,
        defer: bool = False,
        shares: tuple[float, ...] = (),
    ) -> "Loader":
        """The loader of the training stream.

        Args:
            rate, shares: a fixed mask rate, and fixed shares of the objectives; the schedules by default.
            defer: mask on the device if the configuration says it.
        """
        data, seed = config.data, config.run.seed
        vocabulary = Vocabulary.of(sources.tokenizer)
        objective = objective_of(config, vocabulary, seed, "train", defer)
        streams = [
            row_stream(
                dataset,
                seed,
                data.window_blocks,
                data.packing,
                number,
                flags=objective.flags,
                shuffled_ngrams=data.shuffled_ngrams,
                substitute=derive_key(seed, "substitutes") if data.damage_budget else None,
                look_ahead=True,
                static_epochs=config.masking.static_epochs,
            )
            for number, dataset in enumerate(sources.datasets)
        ]
        mixture = Mixture(streams, sources.weights, seed)
        rate_at = functools.partial(mask_rate, config) if rate is None else lambda _: rate
        of_step = (lambda _: shares) if shares else functools.partial(shares_at, config)
        return cls(mixture, stages, vocabulary, objective, rate_at, rank, of_step)

    @classmethod
    def for_held_out(cls, config: Config, dataset: Dataset, stages: Sequence[BatchPhase], rank: int) -> "Loader":
        """The loader of the held-out set: natural word order; damage is an error.

        The mask rate is the final one of the schedule, and selection does not adapt: masks do not depend on the steps
        before. With `eval.masks: common`, the defaults of masking apply, so the masks are the same for every run.
        """
        if config.eval.masks == "common":
            config = config.model_copy(update={"masking": MaskingConfig()})
        data, last = config.data, mask_rate(config, config.train.steps - 1)
        vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
        selection = config.masking.selection.model_copy(update={"adapt_steps": 0})
        masking = config.masking.model_copy(update={"rate": last, "selection": selection})
        constant = config.model_copy(update={"masking": masking})
        objective = objective_of(constant, vocabulary, _EVALUATION_SEED, "valid")
        stream = row_stream(dataset, _EVALUATION_SEED, data.window_blocks, data.packing, flags=objective.flags)
        mixture = Mixture([stream], [1.0], _EVALUATION_SEED)
        return cls(mixture, stages, vocabulary, objective, lambda _: last, rank)

    def step(self, steps_done: int, position: MixturePosition) -> LoaderStep:
        """Build the batches of the step after `steps_done` steps, starting at their end position.

        Raises:
            DamagedData: if a block of the data is damaged and may not be replaced.
        """
        stage, parts, after = self._take(steps_done, position)
        first, rate = self._rank * stage.rank_rows, self._mask_rate(steps_done)
        objective, shares, digest = self._objective(steps_done)
        batches = [
            self._build(_rows(parts, start, stage.micro), stage, rate, objective)
            for start in range(first, first + stage.rank_rows, stage.micro)
        ]
        return LoaderStep(batches, position, after, rate, shares, digest)

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
            parts, _ = self.mixture.take(at, stage.rows, stage.seq_len)
            first, rate = self._rank * stage.rank_rows, self._mask_rate(steps_done)
            starts = [first + number * stage.micro for number in range(min(stage.accumulation, 2))]
            objective = self.objective
            if isinstance(objective, ObjectiveMixture):
                objective = objective.largest(stage.seq_len)
            yield [self._build(_rows(parts, start, stage.micro), stage, rate, objective) for start in starts]

    def held_out(self, steps_done: int, max_rows: int, objective: int = 0) -> Iterator[Batch]:
        """This rank's batches over the first `max_rows` rows of epoch 0; the same number on every rank.

        Rows have the length of the last of the `steps_done` steps. objective: the number of the only one to ask for.
        """
        stage, _ = stage_at(self._stages, max(0, steps_done - 1))
        global_rows, position = stage.world_size * stage.micro, self.mixture.start()
        done = 0
        while done < max_rows and position.sources[0].epoch == 0:
            parts, position = self.mixture.take(position, min(global_rows, max_rows - done), stage.seq_len)
            parts = [part for part in parts if part.epoch == 0]
            done += global_rows
            own, rate = _rows(parts, self._rank * stage.micro, stage.micro), self._mask_rate(steps_done)
            yield self._build(own, stage, rate, self._alone(objective))
        self.mixture.release()

    def samples(self, rows: int, seq_len: int, objective: int = 0) -> Batch:
        """The first rows of epoch 0, at most `rows`, with `seq_len` slots each: the same on every rank.

        objective: as in `held_out`.
        """
        parts, _ = self.mixture.take(self.mixture.start(), rows, seq_len)
        stage = BatchPhase(0, seq_len, 1, 1, rows)
        rows_of_epoch = [part for part in parts if part.epoch == 0]
        batch = self._build(rows_of_epoch, stage, self._mask_rate(0), self._alone(objective))
        self.mixture.release()
        return batch

    def close(self) -> None:
        """Stop the reading threads."""
        self.mixture.close()

    def _take(self, steps_done: int, position: MixturePosition) -> tuple[BatchPhase, list[Part], MixturePosition]:
        """The rows of the step after `steps_done` steps, and the position after them."""
        stage, ended = stage_at(self._stages, steps_done)
        before = position.after_seq_len(ended.seq_len) if ended and ended.seq_len != stage.seq_len else position
        return stage, *self.mixture.take(before, stage.rows, stage.seq_len)

    def _objective(self, steps_done: int) -> tuple[Objective, tuple[float, ...], str]:
        """The objective of the step after `steps_done` steps, with the `shares` and `factors` of LoaderStep."""
        objective, digest = self.objective, ""
        if self.factors:
            factors = self.factors(steps_done)
            objective, digest = with_factors(objective, factors), factors_digest(factors)
        if self._shares is None or not isinstance(objective, ObjectiveMixture):
            return objective, (), digest
        shares = self._shares(steps_done)
        return objective.with_shares(shares), shares, digest

    def _alone(self, number: int) -> Objective:
        return self.objective.alone(number) if isinstance(self.objective, ObjectiveMixture) else self.objective

    def _build(self, parts: list[Part], stage: BatchPhase, rate: float, objective: Objective) -> Batch:
        return build_batch(parts, stage.micro, stage.seq_len, self.vocabulary, objective, rate)


def factors_digest(factors: NDArray[np.float32]) -> str:
    """A digest of factors on the weights of ids: 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(factors.tobytes())


def _rows(parts: Sequence[Part], first: int, count: int) -> list[Part]:
    """Rows first .. first + count - 1 of `parts`; fewer at their end."""
    starts = itertools.accumulate(map(len, parts), initial=0)
    cut = [part[max(first - n, 0) : max(first + count - n, 0)] for part, n in zip(parts, starts, strict=False)]
    return [rows for rows in cut if len(rows)]
