"""The frozen plan of a preparation: everything that decides its output, and so what a rerun must agree with."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import UserError
from data_prep.files import sha256_file, write_json
from data_prep.format import BLOCK_TOKENS, FORMAT_VERSION, SHARD_BYTES, TokenizerInfo
from data_prep.sources import input_names


@dataclass(frozen=True)
class Input:
    """One input file, by its content; `name` is relative to the inputs' common folder."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Task:
    """A unit of work that one process does alone: a whole input file."""

    input: int


@dataclass(frozen=True)
class Settings:
    """What decides the output besides inputs and tokenizer; `valid_fraction` of the documents go to OUT/valid."""

    text_field: str = "text"
    valid_fraction: float = 0.0
    block_tokens: int = BLOCK_TOKENS
    shard_bytes: int = SHARD_BYTES
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Plan:
    """Work for any number of processes; equal plans give byte-identical data sets."""

    inputs: list[Input]
    tasks: list[Task]
    tokenizer: TokenizerInfo
    settings: Settings

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's canonical JSON."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def splits(self) -> list[str]:
        """Folders of the data sets, relative to OUT."""
        return ["train", "valid"] if self.settings.valid_fraction else ["."]


def make_plan(paths: list[Path], tokenizer: TokenizerInfo, settings: Settings) -> Plan:
    """One task for each file. Reads the files to hash them."""
    inputs = [
        Input(name, path.stat().st_size, sha256_file(path))
        for name, path in zip(input_names(paths), paths, strict=True)
    ]
    return Plan(inputs, [Task(index) for index in range(len(inputs))], tokenizer, settings)


def freeze(plan: Plan, out: Path) -> None:
    """Write OUT/prep/plan.json, or check that the plan already there is the same.

    Raises UserError if OUT was begun with another plan, naming what differs, or holds other files.
    """
    path = out / "prep" / "plan.json"
    if not path.exists():
        strangers = sorted(entry.name for entry in out.iterdir() if entry.name != "prep")
        if strangers:
            raise UserError(f"{out} is not empty (it has {strangers[0]}); choose a new --out folder.")
        write_json(path, asdict(plan))
        return
    try:
        frozen = json.loads(path.read_bytes())
        differing = [name for name, value in _comparable(plan).items() if frozen[name] != value]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); choose a new --out folder.") from error
    if differing:
        names = " and ".join("input files" if name == "inputs" else name for name in differing if name != "tasks")
        raise UserError(
            f"{out} was prepared or begun with other {names}; choose a new --out folder or delete this one."
        )


def _comparable(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(plan)))
