"""What a job remembers over its restarts and requeues, in RUN/slurm/supervisor.json."""

import json
from dataclasses import asdict
from pathlib import Path

from data_prep.files import write_json
from launchers.slurm.saving import Saving
from launchers.slurm.verdict import Failure, History


def read_saving(path: Path) -> Saving | None:
    """How long the last checkpoint on Slurm's warning took, by the record of any job; None if there was none."""
    try:
        values = json.loads(path.read_text())["saving"]
        return Saving(**values) if values else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_history(path: Path, job_id: int) -> History:
    """What the job remembers; nothing if the record is another job's, is not there, or cannot be understood."""
    try:
        values = json.loads(path.read_text())
        failure = (
            Failure(int(values["failure"]["step"]), str(values["failure"]["reason"])) if values["failure"] else None
        )
        saving = Saving(**values["saving"]) if values.get("saving") else None
        counts = {name: int(values[name]) for name in ("job_id", "checkpoint", "restarts", "requeues")}
        history = History(**counts, failure=failure, saving=saving)
    except FileNotFoundError:
        return History(job_id)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        print(f"warning: {path} cannot be read ({type(error).__name__}), counting anew", flush=True)
        return History(job_id)
    return history if history.job_id == job_id else History(job_id)


def write_history(path: Path, history: History) -> None:
    """Replace the record.

    Raises:
        OSError: if it cannot be written.
    """
    write_json(path, asdict(history))
