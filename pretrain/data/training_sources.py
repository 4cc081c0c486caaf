"""Data sets of a run: open them, check that they are compatible, and read rows of them without masks."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.common.errors import DamagedData, MissingDataSet, UserError
from data_prep.common.urls import redact
from data_prep.format import Dataset, TokenizerInfo
from data_prep.storage import Cache
from pretrain.config import Config, DataConfig
from pretrain.data.batch import LaidOut, lay_out
from pretrain.data.mixture import PERIOD
from pretrain.data.packing import SPECIALS_PER_PIECE, Mode, pack, randoms_needed
from pretrain.data.quotas import Quotas
from pretrain.data.source_order import SourceOrder, sources_of
from pretrain.data.stream import Position, RowStream
from pretrain.data.token_flags import check_targets, check_translation_pairs, flag_reader
from pretrain.data.window import BlockReader
from pretrain.masking import Vocabulary
from pretrain.objectives import objective_of
from pretrain.philox import Key

_WINDOWS = 2  # number of packed windows; fewer in a smaller data set


@dataclass(frozen=True)
class Sources:
    """The training data sets of a run, ordered by the first phase that reads each.

    names: their names in metrics. weights: their shares of the rows in each phase; 0 where it does not read them.
    orders: of the blocks of each, where its sources are mixed.
    """

    names: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    weights: tuple[tuple[float, ...], ...]
    orders: tuple[SourceOrder | None, ...]

    @classmethod
    def open(cls, config: Config) -> "Sources":
        """Open the data sets of `data.train`, in all phases.

        Raises UserError for a data set that is missing or unfinished, or data sets made with different tokenizers.
        """
        datasets: dict[tuple[str, int], Dataset] = {}  # by path, and by how often the list of a phase had it before
        weights, window_blocks = [], config.data.window_blocks
        mixed: dict[tuple[str, int], dict[int, dict[str, float] | float]] = {}  # weights of sources in each phase
        for phase in config.run_phases:
            train, of_phase = phase.config.data.train, dict[tuple[str, int], float]()
            temperature = phase.config.data.temperature
            of = f"phases.{phase.name}.data.train" if "data.train" in phase.changes else "data.train"
            for number, source in enumerate(train):
                place = source.path, [other.path for other in train[:number]].count(source.path)
                if place not in datasets:
                    datasets[place] = _open(config.data, source.path, of if len(train) == 1 else f"{of}.{number}.path")
                    (first_path, _), first = next(iter(datasets.items()))
                    _check_tokenizer(datasets[place], source.path, first, first_path)
                if inside := source.sources or (temperature if len(train) == 1 else None):
                    mixed.setdefault(place, {})[phase.number] = inside
                size = (source.epochs or 1) * _slots(datasets[place])
                of_phase[place] = source.weight or (size if temperature is None else size ** (1 / temperature))
            weights.append(of_phase)
        return cls(
            _names([path for path, _ in datasets]),
            tuple(datasets.values()),
            tuple(tuple(of_phase.get(place, 0.0) for place in datasets) for of_phase in weights),
            tuple(
                SourceOrder.of(dataset, [mixed[place].get(n, 1.0) for n in range(len(weights))], window_blocks)
                if place in mixed
                else None
                for place, dataset in datasets.items()
            ),
        )

    def shares(self) -> list[int]:
        """Rows of each data set in a cycle of the mixture (Quotas), in the first phase."""
        return Quotas.of(self.weights[0], PERIOD).rows.tolist()

    def mixture_of(self, phase: int = 0) -> dict[str, float]:
        """The share of the rows of each data set that a phase reads, by name."""
        read = self.of_phase(phase)
        shares = read.shares()
        return {name: rows / sum(shares) for name, rows in zip(read.names, shares, strict=True)}

    def of_phase(self, phase: int) -> "Sources":
        """The data sets that a phase reads, for it alone."""
        weights = self.weights[phase]
        read = [number for number, weight in enumerate(weights) if weight]
        orders = [self.orders[number] for number in read]
        return Sources(
            tuple(self.names[number] for number in read),
            tuple(self.datasets[number] for number in read),
            (tuple(weights[number] for number in read),),
            tuple(order and replace(order, quotas=(order.quotas[phase],)) for order in orders),
        )

    def mixed(self) -> dict[str, SourceOrder]:
        """The orders of the data sets whose sources are mixed, by name."""
        return {name: order for name, order in zip(self.names, self.orders, strict=True) if order}

    @property
    def tokenizer(self) -> TokenizerInfo:
        """The tokenizer that all of them were made with."""
        return self.datasets[0].manifest.tokenizer

    @property
    def tokenizer_path(self) -> Path | None:
        """The folder of that tokenizer; None if the data sets hold only ids."""
        return self.datasets[0].tokenizer_path if self.tokenizer.files else None

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the data sets, in order."""
        return " ".join(dataset.manifest.fingerprint for dataset in self.datasets)

    @property
    def index_fingerprint(self) -> str | None:
        """The index fingerprints of the data sets, in order; None if one was made by a version without them."""
        fingerprints = [dataset.manifest.index_fingerprint for dataset in self.datasets]
        return None if None in fingerprints else " ".join(map(str, fingerprints))

    def open_held_out(self, config: DataConfig) -> Dataset | None:
        """Open the data set of `data.valid`, if set.

        Raises UserError as open.
        """
        if config.valid is None:
            return None
        dataset = _open(config, config.valid, "data.valid")
        _check_tokenizer(dataset, config.valid, self.datasets[0], config.train[0].path)
        return dataset

    def check(self, config: Config) -> None:
        """Check before the start that the data are usable, the held-out set too.

        Raises UserError if a check fails.
        """
        ids = self.tokenizer.special_ids
        if config.model.arch == "roberta" and list(ids.values()).count(ids["pad"]) > 1:
            names = " and ".join(name for name, id in ids.items() if id == ids["pad"])
            raise UserError(
                f"model.arch: roberta counts positions by the tokens that are not padding, but one token, id "
                f"{ids['pad']}, is the {names} token of the tokenizer. Choose arch: bert, or another pad_token."
            )
        held_out = self.open_held_out(config.data)
        for dataset in (*self.datasets, *([held_out] if held_out else [])):
            dataset.check_files(indexes_alone=dataset is not held_out and config.data.damage_budget > 0)
        phases = [phase.config for phase in config.run_phases]
        read = [(dataset, [one]) for n, one in enumerate(phases) for dataset in self.of_phase(n).datasets]
        for dataset, configs in [*read, *([(held_out, phases)] if held_out else [])]:
            kinds = [kind for one in configs for kind in one.objective_kinds]
            if any(one.masking.selection.unmarked != 1 for one in configs) or any(kind.needs_targets for kind in kinds):
                check_targets(dataset)
            if any(kind.needs_pairs for kind in kinds):
                check_translation_pairs(dataset, min(one.data.seq_len for one in configs))
        for phase in config.run_phases:
            objective_of(config, Vocabulary.of(self.tokenizer), config.run.seed, "train", phase=phase.number)

    def check_files(self, config: DataConfig, held_out: Dataset | None = None) -> None:
        """Check that all files exist and have their full size, also the files of a held-out set.

        With a budget for damage, print missing and short shards as a warning instead.

        Raises:
            DamagedData: names the first such file and counts the others.
        """
        if held_out:
            held_out.check_files()
        for dataset in self.datasets:
            dataset.check_files(indexes_alone=config.damage_budget > 0)
            try:
                if config.damage_budget:
                    dataset.check_files()
            except DamagedData as error:
                print(f"warning: {error}", file=sys.stderr, flush=True)

    def fillings(self, config: DataConfig, seq_len: int) -> list["Filling"]:
        """The filling of each data set of the first phase at a sequence length."""
        shares = self.mixture_of()
        return [
            Filling.of(dataset, seq_len, config, name, shares[name])
            for name, dataset in zip(self.names, self.datasets, strict=True)
        ]

    def facts(self) -> list[dict[str, Any]]:
        """Description of each data set, as JSON values."""
        return [
            {
                "name": name,
                "location": redact(str(dataset.location)),
                "fingerprint": dataset.manifest.fingerprint,
                "documents": dataset.manifest.totals.documents,
                "tokens": dataset.manifest.totals.tokens,
            }
            for name, dataset in zip(self.names, self.datasets, strict=True)
        ]


def mixture_line(phase: str, shares: dict[str, float]) -> str:
    """The shares of the rows (Sources.mixture_of) in words. phase: its name, "" in a run without phases."""
    parts = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return f"Rows{f' of phase {phase}' if phase else ''}: {parts}"


def row_stream(
    dataset: Dataset,
    seed: int,
    window_blocks: int,
    packing: Mode,
    source: int = 0,
    *,
    flags: int = 0,
    substitute: Key | None = None,
    look_ahead: bool = False,
    order: SourceOrder | None = None,
    source_name: str | None = None,
) -> RowStream:
    """The rows of a data set; see RowStream and BlockReader. Close it after use.

    Args:
        flags: flag bits of tokens that are needed.
        source_name: of the only source to read.

    Raises UserError if the data set lacks word starts or targets.
    """
    only = None if source_name is None else sources_of(dataset)[source_name][0]
    groups = order.blocks if order else () if only is None else (only,)
    reader = BlockReader(dataset, substitute, flag_reader(dataset, flags), groups)
    return RowStream(reader, seed, window_blocks, packing, source, look_ahead, order, only)


def unmasked_rows(
    stream: RowStream, vocabulary: Vocabulary, seq_len: int, most: int, at_once: int | None = None
) -> Iterator[LaidOut]:
    """Lay out the first rows of epoch 0, at most `most`, without masks; `at_once` rows at a time, or all together."""
    position, done = Position(), 0
    while done < most and position.epoch == 0:
        parts, position = stream.take(position, min(at_once or most, most - done), seq_len)
        parts = [part for part in parts if part.epoch == 0]
        n_rows = sum(map(len, parts))
        yield lay_out(parts, n_rows, seq_len, vocabulary)
        done += n_rows


def _open(config: DataConfig, location: str, key: str) -> Dataset:
    try:
        dataset = Dataset(location, Cache(config.cache_dir, int(config.cache_gb * 1e9)))
    except MissingDataSet:
        raise MissingDataSet(location, key) from None
    if not dataset.n_blocks:
        raise UserError(f"{dataset.location} holds no document; prepare it again from a text that has some")
    return dataset


def _slots(dataset: Dataset) -> int:
    """Slots that the documents fill, without the extra specials of cut documents."""
    totals = dataset.manifest.totals
    return totals.tokens + SPECIALS_PER_PIECE * totals.documents


def _check_tokenizer(dataset: Dataset, location: str, other: Dataset, other_location: str) -> None:
    if dataset.manifest.tokenizer.sha256 != other.manifest.tokenizer.sha256:
        raise UserError(
            f"{location} was made with another tokenizer than {other_location}; prepare both with the same --tokenizer"
        )


def _names(locations: Sequence[str]) -> tuple[str, ...]:
    """Names from the data sets' folders, without "train"; numbered where two are equal."""
    names = []
    for location in locations:
        parts = [part for part in location.split("/") if part]
        named = parts[-2] if parts[1:] and parts[-1] == "train" else parts[-1]
        names.append(re.sub(r"[^\w.-]", "-", named))
    return tuple(f"{name}-{number}" if names.count(name) > 1 else name for number, name in enumerate(names))


@dataclass(frozen=True)
class Filling:
    """Rows of a data set, packed as for training. Computed from document lengths alone.

    name: the data set's name in metrics. share: of the run's rows.
    lengths: [D] int64 tokens of the documents, or pieces of them, in a sample of rows; specials included.
    rows: of the sample. seq_len: slots of a row. epoch_rows: estimate for the whole data set.
    """

    name: str
    share: float
    lengths: NDArray[np.int64]
    rows: int
    seq_len: int
    epoch_rows: float = math.inf

    @classmethod
    def of(
        cls, dataset: Dataset, seq_len: int, config: DataConfig | None = None, name: str = "", share: float = 1.0
    ) -> "Filling":
        """The filling of a data set, with the default settings if there is no `config`."""
        config = config or DataConfig(train="-")
        generator = np.random.default_rng(0)
        blocks = generator.permutation(dataset.n_blocks)[: _WINDOWS * config.window_blocks]
        sizes, rows, tokens = [], 0, 0
        for window in np.split(blocks, range(config.window_blocks, len(blocks), config.window_blocks)):
            lengths = np.concatenate([dataset.document_lengths(int(block)) for block in window]).astype(np.int64)
            random = generator.integers(1 << 64, size=randoms_needed(lengths, seq_len), dtype=np.uint64)
            packed = pack(np.cumsum(lengths) - lengths, lengths, seq_len, random, config.packing)
            sizes.append(packed.piece_length + SPECIALS_PER_PIECE)
            rows, tokens = rows + len(packed), tokens + int(lengths.sum())
        epoch_rows = rows * dataset.manifest.totals.tokens / tokens
        return cls(name, share, np.concatenate(sizes), rows, seq_len, epoch_rows)

    @property
    def tokens(self) -> int:
        """Tokens of the sample, specials included."""
        return int(self.lengths.sum())

    @property
    def ordinary(self) -> int:
        """Tokens of the sample, specials left out."""
        return self.tokens - SPECIALS_PER_PIECE * len(self.lengths)

    @property
    def fill(self) -> float:
        """Share of slots that are not padding."""
        return self.tokens / (self.rows * self.seq_len)
