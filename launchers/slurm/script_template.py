"""Templates of batch scripts: placeholders, sbatch's quoting, and log path patterns."""

import string
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from data_prep.errors import UserError


class Template(string.Template):
    """`@{name}` is a placeholder and `@@` an at sign, so that `$` stays free for the shell."""

    delimiter = "@"

    @classmethod
    def load(cls, name: str) -> "Template":
        """Read the template with this file name in launchers/slurm/templates."""
        return cls(resources.files("launchers.slurm").joinpath(f"templates/{name}").read_text(encoding="utf-8"))


def directives(options: Mapping[str, str | None]) -> str:
    """Render one `#SBATCH` line for each option that has a value."""
    return "\n".join(
        f"#SBATCH --{name}={sbatch_quote(name, value)}" for name, value in options.items() if value is not None
    )


def sbatch_quote(name: str, value: str) -> str:
    """Quote a value for an `#SBATCH` line by sbatch's rules: double quotes, and a backslash before `"` and `\\`.

    Raises:
        UserError: for characters that would end the line, and for a backslash in the log's path, which makes sbatch
            ignore patterns such as %j.
    """
    if not value.isprintable() or not value:
        raise UserError(
            f"{name} {value!r} cannot be written in a Slurm script: it is empty or has unprintable characters"
        )
    if name == "output" and "\\" in value:
        raise UserError(
            f"output {value!r} has a backslash, which Slurm cannot have in a log's path: choose another path"
        )
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def log_pattern(folder: Path, name: str) -> str:
    """The path of a log in sbatch's notation. Patterns in `name` stay (%j is the job id); `folder` is escaped."""
    return f"{folder}/".replace("%", "%%") + name
