"""Where and how a preparation runs: what its output does not depend on, and so is no part of the plan."""

from dataclasses import asdict, dataclass
from pathlib import Path

from data_prep.cache import Cache
from data_prep.files import write_json
from data_prep.reading import read_json
from data_prep.reading.typed_values import PathText


@dataclass(frozen=True)
class InputLocations:
    """`locations` are those of the plan's inputs, in its order; `strict` ends a task at the first unreadable row.

    Remote inputs are kept in the folder `cache`, up to `cache_bytes`.
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
    """What the last `prep run` or `prep plan` said; raises UserError where there is none or it is damaged."""
    place: InputLocations = read_json(place_path(out), InputLocations, hint="run `maskwright prep plan` again")
    return place


def place_path(out: Path) -> Path:
    """The first file of a preparation: a folder that has it is no stranger's."""
    return out / "prep" / "place.json"
