"""Shared inputs of a process's tasks: plan, locations, tokenizer, encoders and evaluation n-grams, loaded once."""

from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from data_prep.cleaning import Grams
from data_prep.errors import UserError
from data_prep.files import sha256_file
from data_prep.format import tokenizer_digest
from data_prep.format.shard_format import begins_word
from data_prep.jobs.input_locations import InputLocations, read_place
from data_prep.jobs.preparation_plan import PreparationPlan, evaluation_path, read_plan
from data_prep.jobs.task_documents import Quarantine, TaskDocuments
from data_prep.sources import SourceInput, examine
from data_prep.tokenizer import Encoders, load
from data_prep.urls import shown


class Workbench:
    """Plan, locations, tokenizer, encoders and evaluation n-grams of OUT. A process loads each of them once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.plan: PreparationPlan = read_plan(out)
        self.place: InputLocations = read_place(out)

    @property
    def _tokenizer_path(self) -> Path:
        return self.out / self.plan.splits[0] / "tokenizer"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self._tokenizer_path
        if tokenizer_digest(path, self.plan.tokenizer.files)[0] != self.plan.tokenizer.sha256:
            raise UserError(f"The tokenizer in {path} has changed; delete {self.out} and prepare the data again.")
        return load(path)

    @cached_property
    def encoders(self) -> Encoders:
        return Encoders(self.tokenizer, self.plan.tokenizer)

    @cached_property
    def begins_word(self) -> np.ndarray | None:
        """Whether each id begins a word, bool [vocab_size]; None if the vocabulary alone does not determine it."""
        info = self.plan.tokenizer
        if info.continuation_prefix is None:
            return None
        return begins_word((self._tokenizer_path / "tokenizer.json").read_bytes(), info)

    @cached_property
    def evaluation(self) -> Grams | None:
        if self.plan.settings.evaluation_sha256 is None:
            return None
        path = evaluation_path(self.out)
        if not path.is_file() or sha256_file(path) != self.plan.settings.evaluation_sha256:
            raise UserError(f"{path} is missing or damaged; run the same `maskwright prep` command again.")
        return Grams.load(path)

    @cached_property
    def forbidden(self) -> np.ndarray:
        """Mask of the ids that no document may contain, bool [vocab_size]."""
        info = self.plan.tokenizer
        forbidden = np.zeros(info.vocab_size, dtype=bool)
        forbidden[[id for name, id in info.special_ids.items() if name != "unk"]] = True
        return forbidden

    def documents(self, task: int, quarantine: Quarantine | None = None) -> TaskDocuments:
        """The documents of a task; raises UserError if its input has changed since it was planned."""
        unit = self.plan.tasks[task]
        planned = self.plan.inputs[unit.input]
        source = SourceInput(planned.source, self.place.locations[unit.input], planned.kind)
        if planned.kind != "hub" and self._digest(source) != planned.digest:
            raise UserError(f"{shown(source.location)} has changed since it was planned; run the same command again.")
        return TaskDocuments(self.plan, task, self.place, self.evaluation, quarantine)

    def _digest(self, source: SourceInput) -> str:
        return examine(source, self.place.open_cache(), self.plan.settings.reading).digest
