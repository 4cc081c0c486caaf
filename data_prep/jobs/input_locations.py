"""Input locations and run options of a preparation (`prep/place.json`).

They may change between runs. The plan, which decides the output, may not.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.cache import Cache
from data_prep.files import write_json
from data_prep.reading import PathText, read_json


@dataclass(frozen=True)
class InputLocations:
    """Locations of the plan's inputs, in the plan's order, and run options.

    `strict` stops a task at its first unreadable row. `cache` is the cache folder for remote inputs; it holds up to
    `cache_bytes`.
    """

    locations: list[PathText]
    strict: bool
    cache: PathText
    cache_bytes: int

    def open_cache(self) -> Cache:
        return Cache(Path(self.cache), self.cache_bytes)


def write_place(place: InputLocations, out: Path) -> None:
    write_json(place_path(out), asdict(place))


def read_place(out: Path) -> InputLocations:
    """The locations of the last `prep run` or `prep plan`; raises UserError if the file is missing or damaged."""
    place: InputLocations = read_json(place_path(out), InputLocations, hint="run `maskwright prep plan` again")
    return place


def place_path(out: Path) -> Path:
    """Path of the first file that a preparation writes. It marks OUT as the folder of a preparation."""
    return out / "prep" / "place.json"
