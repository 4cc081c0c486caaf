"""Runs that differ in their seed alone: one job array, whose indices are the seeds."""

import re
from dataclasses import dataclass

from data_prep.errors import UserError


@dataclass(frozen=True)
class Seeds:
    """`text` is what sbatch's --array takes: `1,2,5-8`, and `%2` after it for two jobs at a time."""

    text: str
    values: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, max_array_size: int) -> "Seeds":
        """Read `--seeds`.

        Raises:
            UserError: for another form, a seed that is there twice, and one that is no index of an array here.
        """
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?", text, re.ASCII):
            raise UserError(f"--seeds {text!r} is not of the form 1,2,5-8, with %2 after it for two jobs at a time")
        ranges = [[int(end) for end in part.split("-")] for part in text.partition("%")[0].split(",")]
        largest = max(max(ends) for ends in ranges)
        if largest >= max_array_size:
            raise UserError(
                f"--seeds: {largest} is too large, as seeds are the indices of a job array, which go up to "
                f"{max_array_size - 1} on this cluster"
            )
        values = [seed for ends in ranges for seed in range(ends[0], ends[-1] + 1)]
        if len(set(values)) != len(values) or any(ends[0] > ends[-1] for ends in ranges):
            raise UserError(f"--seeds {text}: give each seed once, and ranges from the lower to the higher")
        return cls(text, tuple(values))
