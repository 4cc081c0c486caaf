"""The training stream for other trainers: batches for a model of transformers, with other masks in every epoch."""

import json
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data_prep.common.errors import UserError
from data_prep.common.reading import typed
from pretrain.config import SettingSchedule
from pretrain.config_files import flat, load_config
from pretrain.data.batch import Batch
from pretrain.data.feed import Prefetcher
from pretrain.data.loader import BatchStage, Loader
from pretrain.data.mixture import MixturePosition
from pretrain.data.training_sources import Sources
from pretrain.masking import IGNORED, cached_weights


class MaskedStream(IterableDataset[dict[str, Any]]):
    """Batches with masks for a model of transformers, in `transformers.Trainer`, accelerate, Lightning or your loop.

    Batch n is a function of the data, the settings and n. Each process gets its own rows. A new iteration continues
    after the last batch. A batch of R rows with S slots has:

    - input_ids int64 [R, S]: tokens after masking. labels int64 [R, S]: the tokens to predict, and -100 elsewhere.
    - padded rows, each with one document or a piece of one: attention_mask int64 [R, S]. S is the longest of the batch.
    - packed rows, with several documents: position_ids int64 [R, S] start again in each document. attention_mask bool
      [R, 1, S, S] is true between tokens of one document. It is for attn_implementation "sdpa", the default of models.

    Args:
        train: a data set of `maskwright prep run` (folder or URL), or a list as in `data.train` of a config.
        batch_size: rows of a batch, on this process. seq_len: slots of a row.
        rows: "packed" or "padded".
        steps: the number of batches; without end by default. A schedule of the mask rate needs it.
        masking: settings as in the section `masking` of a config. seed: of order and masks.
        local_attention: of a ModernBERT with packed rows; attention_mask is then a dict with a mask for each kind of
            layer.
        first_position: of a document in packed rows; models of RoBERTa's kind need the padding id + 1.
        rank, world_size: of this process; by default from torch.distributed, or else from the environment.

    Raises:
        UserError: if a data set or a setting cannot be used.
    """

    def __init__(
        self,
        train: str | os.PathLike[str] | Sequence[str | Mapping[str, Any]],
        batch_size: int,
        seq_len: int = 128,
        rows: Literal["packed", "padded"] = "packed",
        *,
        steps: int | None = None,
        masking: Mapping[str, Any] | None = None,
        seed: int = 0,
        local_attention: int | None = None,
        first_position: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        super().__init__()
        now = _process()
        self._rank, world_size = now[0] if rank is None else rank, world_size or now[1]
        if not 0 <= self._rank < world_size:
            raise UserError(f"rank is {self._rank}, but {world_size} processes have 0 to {world_size - 1}; give both")
        self._steps, self._rows, self._local, self._first = steps, rows, local_attention, first_position
        settings = {
            "run": {"dir": ".", "seed": seed},
            "data": {"train": train, "seq_len": seq_len, "packing": "none" if rows == "padded" else "best_fit"},
            "masking": dict(masking or {}),
            "train": {"steps": steps or 1, "global_batch_size": batch_size * world_size},
        }
        # Not as ASCII: YAML would read the two escapes of a rare character as two characters.
        words = [json.dumps(section, ensure_ascii=False, default=os.fspath) for section in settings.values()]
        self._config = load_config(None, [f"{name}={word}" for name, word in zip(settings, words, strict=True)])
        self._stages = BatchStage.of_run(self._config, world_size)
        if steps is None and isinstance(self._config.masking.rate, SettingSchedule):
            raise UserError("masking.rate follows a schedule, which needs its length; give steps")
        sources, listed = Sources.open(self._config), self._config.masking.selection.weights
        cached_weights.cache_clear()  # an earlier stream of this process may have read another list
        sources.check(self._config)
        self._pad = sources.tokenizer.special_ids["pad"]
        self._settings = {"seed": seed, "data": sources.fingerprint, "rows": rows, "seq_len": seq_len}
        self._settings |= {"masking": self._config.masking.model_dump(mode="json")}
        self._settings |= {"batch_size * world_size": batch_size * world_size}
        several: dict[str, list[Any]] = {"shares": sources.shares(), "strategies": [*self._config.masking.weights]}
        self._settings |= {name: values for name, values in several.items() if len(values) > 1}
        if listed:
            self._settings["weights"] = cached_weights(listed).digest
        self._settings |= {f"sources {number}": order.digest for number, order in enumerate(sources.mixed().values())}
        self._start = MixturePosition(0, ()).of_sources(len(sources.datasets))
        self._batches, self._known = 0, (0, self._start)

    def __len__(self) -> int:
        """The number of batches. Raises TypeError without `steps`."""
        if self._steps is None:
            raise TypeError("a MaskedStream without steps has no end")
        return self._steps

    @property
    def batches(self) -> int:
        """How many batches it gave since the beginning."""
        return self._batches

    def loader(self, workers: int = 0, **options: Any) -> "DataLoader[dict[str, Any]]":
        """The batches through a DataLoader that knows the place too. Each batch comes once, in the same order.

        Args:
            workers: processes that build batches; 0 is a thread, which is enough for most models.
            options: further arguments of DataLoader, such as pin_memory.

        Raises:
            UserError: for persistent_workers, which would begin each iteration with the first batch again.
        """
        if options.get("persistent_workers"):
            raise UserError("persistent_workers would give the same batches again in each iteration; remove it")
        return _StreamLoader(self, batch_size=None, num_workers=workers, **options)

    def seek(self, batches: int) -> None:
        """Let the next iteration continue after this many batches since the beginning. It reads no tokens."""
        self._batches = batches
        if batches < self._known[0]:
            self._known = 0, self._start

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch, and the settings that decide the batches, as JSON values."""
        if self._batches > self._known[0]:
            with closing(self._open()) as loader:
                self._place(loader)
        batches, position = self._known
        return {"batches": batches, "position": asdict(position), "settings": self._settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the place of a `state_dict`.

        The number of processes may differ, if their batches together have as many rows as before.

        Raises:
            UserError: if it is of another stream, or after more batches than this one has.
        """
        wrong = UserError("this is not the state of a MaskedStream; load what its state_dict returned")
        try:
            position = typed(MixturePosition, json.loads(json.dumps(state["position"])))
            batches, then = typed(int, state["batches"]), flat(typed(dict[str, Any], state["settings"]))
        except (KeyError, TypeError, ValueError):
            raise wrong from None
        now = flat(self._settings)
        if name := next((name for name in {**now, **then} if then.get(name) != now.get(name)), None):
            was, value = reprlib.repr(then.get(name)), reprlib.repr(now.get(name))
            raise UserError(f"the state is of another stream: {name} was {was} and is {value}")
        rows = batches * self._config.train.global_batch_size
        if (len(position.sources), position.dealt) != (len(self._start.sources), rows):
            raise wrong
        if self._steps is not None and batches > self._steps:
            raise UserError(f"the state is after {batches} batches, and the stream has {self._steps}; give more steps")
        self._batches, self._known = batches, (batches, position)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, loader = get_worker_info(), self._open()
        if worker:
            yield from self._share_of_worker(loader, worker.id, worker.num_workers)
            return
        place = self._place(loader)
        ahead = Prefetcher(loader, *place, lambda step: (step.after, self._tensors(step.batches[0])))
        try:
            while self._steps is None or self._batches < self._steps:
                after, batch = ahead.next()
                self._batches += 1
                self._known = self._batches, after
                yield batch
        finally:
            if not sys.is_finalizing():  # threads cannot be joined when the interpreter ends
                ahead.close()

    def _share_of_worker(self, loader: Loader, worker: int, workers: int) -> Iterator[dict[str, Any]]:
        """Every `workers`-th batch: a DataLoader takes a batch of each worker in turn."""
        start, position = self._place(loader)
        number = start
        with closing(loader):
            while self._steps is None or number < self._steps:
                if (number - start) % workers == worker:
                    step = loader.step(number, position)
                    position = step.after
                    yield self._tensors(step.batches[0])
                else:
                    position = loader.skip(number, position, 1, number + 1)
                number += 1

    def _open(self) -> Loader:
        sources, listed = Sources.open(self._config), self._config.masking.selection.weights
        digests = sources.fingerprint, cached_weights(listed).digest if listed else None
        if digests != (self._settings["data"], self._settings.get("weights")):
            raise UserError("the data or weights have changed since this stream was made, so make another")
        return Loader.for_training(self._config, sources, self._stages, self._rank)

    def _place(self, loader: Loader) -> tuple[int, MixturePosition]:
        """The number of batches before the next one, and its position."""
        known, position = self._known
        if self._batches > known:
            position = loader.skip(known, position, self._batches - known, self._batches)
            self._known = self._batches, position
        return self._known

    def _tensors(self, batch: Batch) -> dict[str, Any]:
        """The batch as the arguments of a model's forward pass."""
        tokens = torch.from_numpy(batch.tokens).view(-1, batch.seq_len)
        labels = np.full(len(batch.tokens), IGNORED, dtype=np.int64)
        predicted = batch.labels != IGNORED
        labels[batch.masked_positions[predicted]] = batch.labels[predicted]
        arguments = {"input_ids": tokens, "labels": torch.from_numpy(labels).view_as(tokens)}
        if self._rows == "padded":
            bounds = batch.cu_seqlens.astype(np.int64)
            inside = np.repeat(batch.tokens[bounds[:-1]] != self._pad, np.diff(bounds))  # [SEP] may equal padding
            real = torch.from_numpy(inside).view_as(tokens)
            longest = int(real.sum(1).max())
            arguments["attention_mask"] = real.long()
            return {name: tensor[:, :longest].contiguous() for name, tensor in arguments.items()}
        positions = torch.from_numpy(batch.positions).view_as(tokens)
        documents = torch.from_numpy(np.repeat(np.arange(len(batch.cu_seqlens) - 1), np.diff(batch.cu_seqlens)))
        documents = documents.view_as(tokens)
        mask: Any = (documents[:, None, :, None] == documents[:, None, None, :]).contiguous()
        if self._local is not None:
            slots = torch.arange(batch.seq_len)
            near = (slots[:, None] - slots).abs() <= self._local // 2
            mask = {"full_attention": mask, "sliding_attention": mask & near}
        return arguments | {"position_ids": positions + self._first, "attention_mask": mask}


class _StreamLoader(DataLoader[dict[str, Any]]):
    """A DataLoader of a MaskedStream. It counts the batches that it gave, so that its state is right with workers."""

    dataset: MaskedStream

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        for number, batch in enumerate(super().__iter__(), self.dataset.batches + 1):
            self.dataset.seek(number)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.dataset.load_state_dict(state)


def _process() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
