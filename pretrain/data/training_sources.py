"""Data sets of a run: open them, check that they are compatible, and build the loaders."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.errors import DamagedData, MissingDataSet, UserError
from data_prep.format import Dataset, TokenizerInfo
from data_prep.storage import Cache
from data_prep.urls import redact
from pretrain.config import Config, DataConfig, MaskingConfig
from pretrain.data.loader import BatchPhase, Loader, stages_of
from pretrain.data.mixture import Mixture, quotas
from pretrain.data.packing import SPECIALS_PER_PIECE, Mode, pack, randoms_needed
from pretrain.data.stream import RowStream
from pretrain.data.token_flags import check_targets, flag_reader, word_order
from pretrain.data.window import BlockReader
from pretrain.masking import DeferredMasks, MaskedTokens, Vocabulary
from pretrain.objectives import objective_of, rate_at
from pretrain.philox import Key, derive_key

_WINDOWS = 2  # number of packed windows; fewer in a smaller data set
_EVALUATION_SEED = 0  # held-out rows and masks are the same for every run, so that runs compare


@dataclass(frozen=True)
class Sources:
    """The training data sets of a run; `weights` are their shares of the rows, `names` their names in metrics."""

    names: tuple[str, ...]
    datasets: tuple[Dataset, ...]
    weights: tuple[float, ...]

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
        found = [dataset.manifest.index_fingerprint for dataset in self.datasets]
        return None if None in found else " ".join(map(str, found))

    def open_held_out(self, config: DataConfig) -> Dataset | None:
        """Open the data set of `data.valid`, if set.

        Raises:
            UserError: as open_sources.
        """
        if config.valid is None:
            return None
        dataset = _open(config, config.valid, "data.valid")
        _check_tokenizer(dataset, config.valid, self.datasets[0], config.train[0].path)
        return dataset

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


def open_sources(config: DataConfig) -> Sources:
    """Open the data sets of `data.train`.

    Raises:
        UserError: for a data set that is missing or unfinished, or data sets made with different tokenizers.
    """
    keys = ["data.train"] if len(config.train) == 1 else [f"data.train.{n}.path" for n in range(len(config.train))]
    datasets = tuple(_open(config, source.path, key) for source, key in zip(config.train, keys, strict=True))
    for source, dataset in zip(config.train[1:], datasets[1:], strict=True):
        _check_tokenizer(dataset, source.path, datasets[0], config.train[0].path)
    weights = tuple(
        source.weight or (source.epochs or 1) * _slots(dataset)
        for source, dataset in zip(config.train, datasets, strict=True)
    )
    return Sources(_names([source.path for source in config.train]), datasets, weights)


def check_run(config: Config, world_size: int) -> None:
    """Check before the start that the data are usable and that batches divide over the processes.

    Raises:
        UserError: if a check fails.
    """
    stages_of(config, world_size)
    sources = open_sources(config.data)
    held_out = sources.open_held_out(config.data)
    for dataset in (*sources.datasets, *([held_out] if held_out else [])):
        dataset.check_files(indexes_alone=dataset is not held_out and config.data.damage_budget > 0)
        if config.objective == "repair":
            check_targets(dataset)
    objective_of(config, Vocabulary.of(sources.tokenizer), config.run.seed, "train")


def row_stream(
    dataset: Dataset,
    seed: int,
    window_blocks: int,
    packing: Mode,
    source: int = 0,
    *,
    flags: int = 0,
    shuffled_ngrams: int = 0,
    substitute: Key | None = None,
    look_ahead: bool = False,
    static_epochs: int = 0,
) -> RowStream:
    """The rows of a data set; see RowStream and BlockReader.

    Args:
        flags: flag bits of tokens that are needed. shuffled_ngrams: words of shuffled n-grams; 0: natural order.

    Raises:
        UserError: if the data set lacks word starts or targets.
    """
    order = word_order(dataset, shuffled_ngrams, seed)
    reader = BlockReader(dataset, substitute, order, flag_reader(dataset, flags))
    return RowStream(reader, seed, window_blocks, packing, source, look_ahead, static_epochs)


def training_loader(
    config: Config,
    sources: Sources,
    stages: Sequence[BatchPhase],
    rank: int,
    rate: float | None = None,
    defer: bool = False,
) -> Loader:
    """The loader of the training stream.

    Args:
        rate: a fixed mask rate; the schedule by default.
        defer: mask on the device if the configuration says it.
    """
    data, seed = config.data, config.run.seed
    vocabulary = Vocabulary.of(sources.tokenizer)
    objective = objective_of(config, vocabulary, seed, "train")
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

    if defer and config.masking.device == "gpu" and isinstance(objective, MaskedTokens):
        objective = DeferredMasks(objective)
    return Loader(
        mixture, stages, vocabulary, objective, lambda done: rate_at(config, done) if rate is None else rate, rank
    )


def held_out_loader(config: Config, dataset: Dataset, stages: Sequence[BatchPhase], rank: int) -> Loader:
    """The loader of the held-out set: natural word order; damage is an error.

    The mask rate is the final one of the schedule. With `eval.masks: common`, the defaults of masking apply, so the
    masks are the same for every run. The masks depend on the final rate only, not on the rates before it.
    """
    if config.eval.masks == "common":
        config = config.model_copy(update={"masking": MaskingConfig()})
    data, last = config.data, rate_at(config, config.train.steps - 1)
    vocabulary = Vocabulary.of(dataset.manifest.tokenizer)
    constant = config.model_copy(update={"masking": config.masking.model_copy(update={"rate": last})})
    objective = objective_of(constant, vocabulary, _EVALUATION_SEED, "valid")
    stream = row_stream(dataset, _EVALUATION_SEED, data.window_blocks, data.packing, flags=objective.flags)
    mixture = Mixture([stream], [1.0], _EVALUATION_SEED)
    return Loader(mixture, stages, vocabulary, objective, lambda _: last, rank)


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
    rows: of the sample. epoch_rows: estimate for the whole data set.
    """

    name: str
    share: float
    lengths: NDArray[np.int64]
    rows: int
    epoch_rows: float


def fillings(config: DataConfig, sources: Sources, seq_len: int) -> list[Filling]:
    """The filling of each source at a sequence length."""
    shares = quotas(sources.weights)
    named = zip(sources.names, sources.datasets, shares / shares.sum(), strict=True)
    return [_filling(config, name, dataset, float(share), seq_len) for name, dataset, share in named]


def packed_fill(dataset: Dataset, seq_len: int) -> float:
    """Share of slots that are not padding when a data set is packed with the default settings."""
    filling = _filling(DataConfig(train="-"), "", dataset, 1.0, seq_len)
    return float(filling.lengths.sum() / (filling.rows * seq_len))


def _filling(config: DataConfig, name: str, dataset: Dataset, share: float, seq_len: int) -> Filling:
    generator = np.random.default_rng(0)
    blocks = generator.permutation(dataset.n_blocks)[: _WINDOWS * config.window_blocks]
    sizes, rows, tokens = [], 0, 0
    for window in np.split(blocks, range(config.window_blocks, len(blocks), config.window_blocks)):
        lengths = np.concatenate([dataset.document_lengths(int(block)) for block in window]).astype(np.int64)
        random = generator.integers(1 << 64, size=randoms_needed(lengths, seq_len), dtype=np.uint64)
        packed = pack(np.cumsum(lengths) - lengths, lengths, seq_len, random, config.packing)
        sizes.append(packed.piece_length + SPECIALS_PER_PIECE)
        rows, tokens = rows + len(packed), tokens + int(lengths.sum())
    return Filling(name, share, np.concatenate(sizes), rows, rows * dataset.manifest.totals.tokens / tokens)
