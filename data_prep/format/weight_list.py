"""Weight lists: the JSON file that `maskwright prep weights` writes, and masking reads to predict some tokens more."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.common.errors import DamagedData, MissingFile, UnusableInput, one_line
from data_prep.common.files import write_file
from data_prep.common.reading import parse_json, read_bytes


@dataclass(frozen=True)
class WeightList:
    """Weights of each id of a tokenizer, 0 or from 1e-6 to 1e6 (ValueError for others)."""

    tokenizer_sha256: str
    weights: list[float]

    def __post_init__(self) -> None:
        if not all(weight == 0 or 1e-6 <= weight <= 1e6 for weight in self.weights):
            raise ValueError("a weight is neither 0 nor from 1e-6 to 1e6")

    @property
    def digest(self) -> str:
        """SHA-256 of the list."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Write the list atomically."""
        write_file(path, json.dumps(asdict(self)).encode())

    @staticmethod
    def read(path: Path) -> "WeightList":
        """Read a list. Raises UserError if it is missing, and DamagedData if it is not such a list."""
        advice = "make one with `maskwright prep weights`."
        try:
            return parse_json(read_bytes(path), WeightList)
        except MissingFile:
            raise UnusableInput(f"{path}: no such weight list; {advice}") from None
        except ValueError as error:
            reason = one_line(str(error), 80)
            raise DamagedData(f"{path} is not a sound weight list ({reason}); {advice}") from None
