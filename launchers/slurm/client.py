"""The Slurm client: every call of sbatch, squeue, srun, salloc, scontrol, sinfo and scancel."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_prep.errors import UserError
from data_prep.files import open_plain
from data_prep.processes import die_with_parent

PROGRAMS = ("sbatch", "srun", "salloc", "scontrol", "sinfo", "squeue", "scancel")

MAX_ARRAY_SIZE = 1001
"""Slurm's default. The indices of a job array go up to one less."""
COMMENT = "maskwright:"
"""A job's comment is this and the run folder."""

_SECONDS = 15.0  # for a busy controller to answer
_SUPERVISOR_SECONDS = 60.0  # the same, inside a job
_KILL_WAIT = 30.0  # seconds, Slurm's default
_EXCLUDE_TRIES = 20  # a tenth of a second apart, within Slurm's KillWait
_STEP_END_SECONDS = 20.0  # for srun to end its tasks after SIGTERM
_WRITTEN = "written by `maskwright launch"
_FIELDS = {"id": "%i", "array": "%F", "task": "%K", "state": "%T", "reason": "%r", "used": "%M", "limit": "%l"}
_FIELDS |= {"start": "%S", "nodes": "%D", "name": "%j", "comment": "%k", "script": "%o"}
_SEPARATOR = "\x1f"  # names and paths may hold anything that is printable
_BLANK = " \n"  # around an answer; str.strip would take separators too


class ProgramAnswer(NamedTuple):
    """The output of a program (stderr if it failed), and whether it succeeded."""

    works: bool
    text: str


class SrunOutput(NamedTuple):
    """The output of a job step. There is no `code` if the step did not end in time."""

    code: int | None
    output: str
    errors: str


@dataclass(frozen=True)
class QueuedJob:
    """A job of Maskwright that waits or runs.

    Attributes:
        id: as scancel takes it; ARRAY_TASK for an element of an array.
        state: Slurm's, such as PENDING. reason: why it waits.
        used, limit: time, as Slurm prints it. start: when it began, or may begin, if that is known.
        run: the folder of the run that it trains; None for a job that trains none.
    """

    id: str
    state: str
    reason: str
    used: str
    limit: str
    start: str
    nodes: str
    name: str
    run: Path | None

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits to begin again."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


def _ask(*command: str, seconds: float | None = _SECONDS) -> ProgramAnswer:
    """Run a program of Slurm to its end."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return ProgramAnswer(False, f"{command[0]} was not found: run this on a login node of a Slurm cluster")
    except subprocess.TimeoutExpired:
        return ProgramAnswer(False, f"{command[0]} did not answer within {seconds:g} s")
    except OSError as error:
        return ProgramAnswer(False, f"{command[0]} cannot be run ({error.strerror})")
    if result.returncode == 0:
        return ProgramAnswer(True, result.stdout.strip(_BLANK))
    message = (result.stderr or result.stdout).strip(_BLANK)
    return ProgramAnswer(False, message or f"{command[0]} exited with {result.returncode}")


def is_installed(program: str) -> bool:
    """Whether a program of Slurm is on the search path."""
    return shutil.which(program) is not None


def scontrol(*arguments: str, seconds: float = _SECONDS) -> ProgramAnswer:
    """Call `scontrol ARGUMENTS`."""
    return _ask("scontrol", *arguments, seconds=seconds)


def settings() -> dict[str, str]:
    """The cluster's settings; none if the controller does not answer."""
    answer = scontrol("show", "config")
    return parse_settings(answer.text) if answer.works else {}


def parse_settings(text: str) -> dict[str, str]:
    """The settings that `scontrol show config` prints."""
    return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))


def max_array_size() -> int:
    """The cluster's MaxArraySize, or Slurm's default if it cannot be asked."""
    return int(settings().get("MaxArraySize", MAX_ARRAY_SIZE))


def kill_wait() -> float:
    """Seconds from Slurm's SIGTERM to its SIGKILL."""
    found = re.match(r"\d+", settings().get("KillWait", ""))
    return float(found[0]) if found else _KILL_WAIT


def host_names(node_list: str) -> list[str]:
    """The host names of a list such as `n[1-3]`, in Slurm's order; none if scontrol does not answer."""
    answer = scontrol("show", "hostnames", node_list, seconds=_SUPERVISOR_SECONDS)
    return answer.text.split() if answer.works else []


def sinfo(columns: str) -> ProgramAnswer:
    """Call sinfo with a format and without a header."""
    return _ask("sinfo", "--noheader", f"--format={columns}")


def srun(
    command: Sequence[str],
    hosts: Sequence[str],
    tasks_per_node: int = 1,
    cpus_per_task: int | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The command line of a job step that runs `command` on these hosts of the allocation.

    A task that fails does not end the others.
    """
    words = ["srun", "--overlap", f"--nodelist={','.join(hosts)}", f"--nodes={len(hosts)}"]
    words += [f"--ntasks={len(hosts) * tasks_per_node}", f"--ntasks-per-node={tasks_per_node}"]
    words += [f"--cpus-per-task={cpus_per_task}"] if cpus_per_task else []
    return [*words, "--distribution=block", "--kill-on-bad-exit=0", *options, *command]


def step_output(step: Sequence[str], seconds: float) -> SrunOutput:
    """Run a job step (see srun) to its end, or end it after so many seconds.

    Raises:
        UserError: where there is no srun.
    """
    try:
        process = subprocess.Popen(
            step,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent,
        )
    except FileNotFoundError:
        raise UserError("srun was not found: run this inside an allocation of a Slurm cluster") from None
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_step(process)  # its output is not read: a helper of srun may hold the pipe for as long as a node hangs
        return SrunOutput(None, "", "")
    return SrunOutput(process.returncode, output, errors)


def start_step(step: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a job step in a separate session: a signal to this process then does not make srun kill its tasks."""
    return subprocess.Popen(
        step, env=environment, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
    )


def end_step(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Have srun kill its tasks, as far as their nodes answer."""
    process.terminate()
    try:
        process.wait(_STEP_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def allocate(nodes: int, options: Sequence[str], command: Sequence[str]) -> int:
    """Run a command in a new allocation, and return its exit code.

    Raises:
        UserError: where there is no salloc.
    """
    try:
        return subprocess.run(["salloc", f"--nodes={nodes}", *options, *command]).returncode
    except FileNotFoundError:
        raise UserError("salloc was not found: run this on a login node of a Slurm cluster") from None


def check_available() -> None:
    """Raise UserError where there is no sbatch."""
    if not is_installed("sbatch"):
        raise UserError("sbatch was not found: run this on a login node of a Slurm cluster")


def submit(script: Path, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
    """Submit a script, `sbatch OPTIONS SCRIPT ARGUMENTS`, and return the job's id.

    Raises:
        UserError: when there is no sbatch here, or with sbatch's own message when it refuses the job.
    """
    answer = _ask("sbatch", "--parsable", *options, str(script), *arguments, seconds=None)
    if answer.works:
        return answer.text.split(";")[0]
    if not is_installed("sbatch"):
        raise UserError(f"{answer.text} (the script is at {script})")
    message = " ".join(line.removeprefix("sbatch: error: ") for line in answer.text.splitlines())
    raise UserError(f"sbatch refused the job: {message} (the script is at {script})")


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs of this user that have not ended."""
    if job_ids:
        _ask("scancel", "--quiet", *job_ids, seconds=None)


def cancel_waiting(ids: Sequence[str]) -> str | None:
    """Remove jobs from the queue, unless they have begun; the error, or None."""
    answer = _ask("scancel", "--state=PENDING", *ids)
    return None if answer.works else answer.text


def still_queued(job_ids: Sequence[str]) -> list[str]:
    """The jobs that wait or run, in the order given.

    Raises:
        UserError: when there is no squeue here, or it cannot ask the controller.
    """
    if not job_ids:
        return []
    answer = _ask("squeue", "--noheader", "--format=%F", f"--jobs={','.join(job_ids)}")  # %F: an array's id
    # Slurm forgets a job some minutes after its end. squeue calls that an error when it was asked for one job.
    if not answer.works and "Invalid job id" not in answer.text:
        raise UserError(f"Cannot find out whether jobs {' '.join(job_ids)} still run: {answer.text}")
    queued = set(answer.text.split()) if answer.works else set()
    return [job_id for job_id in job_ids if job_id in queued]


def own_jobs(seconds: float = _SECONDS) -> tuple[list[QueuedJob], str | None]:
    """This user's jobs of Maskwright, the oldest first; or none, and why Slurm cannot be asked."""
    columns = _SEPARATOR.join(_FIELDS.values())
    answer = _ask("squeue", "--me", "--array", "--noheader", f"--format={columns}", seconds=seconds)
    if not answer.works:
        return [], answer.text.splitlines()[-1]
    found = [job for line in answer.text.splitlines() if (job := parse_job(line))]
    return sorted(found, key=lambda job: [int(part) for part in re.findall(r"\d+", job.id)]), None


def parse_job(line: str) -> QueuedJob | None:
    """The job of a line of squeue; None for a job that is not Maskwright's, and for anything else."""
    parts = line.split(_SEPARATOR)
    if len(parts) != len(_FIELDS):
        return None
    job = dict(zip(_FIELDS, (part.strip() for part in parts), strict=True))
    run = _run_of(job["comment"], job["script"], job["task"])
    if run is None and not _is_our_script(job["script"]):
        return None
    keys = ("id", "state", "reason", "used", "limit", "start", "nodes", "name")
    return QueuedJob(**{key: job[key] for key in keys}, run=run)


def _run_of(comment: str, script: str, task: str) -> Path | None:
    """The run folder that a job names in its comment, or whose script it is (RUN/slurm/job.sh)."""
    if comment.startswith(COMMENT):
        return Path(comment.removeprefix(COMMENT).replace("%a", task))
    path = Path(script)
    return path.parent.parent if path.parts[-2:] == ("slurm", "job.sh") else None


def _is_our_script(script: str) -> bool:
    try:
        with open_plain(script) as file:
            return _WRITTEN in file.read(500).decode(errors="replace")
    except (OSError, ValueError):
        return False


def jobs_of(run: Path, jobs: list[QueuedJob]) -> list[QueuedJob]:
    """The jobs that train this run."""
    return [job for job in jobs if job.run is not None and job.run.resolve() == run.resolve()]


def own_name() -> str:
    """The name of this process's job for scontrol: JOB, or ARRAY_TASK for an element of an array.

    The last element's SLURM_JOB_ID is the number of the array, which scontrol takes as all elements.
    """
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def own_fields() -> dict[str, str]:
    """The fields of this job by `scontrol show job`; none if the controller does not answer."""
    answer = scontrol("--oneliner", "show", "job", own_name(), seconds=_SUPERVISOR_SECONDS)
    return dict(re.findall(r"(\w+)=(\S*)", answer.text)) if answer.works else {}


def requeue(exclude: Sequence[str]) -> str | None:
    """Queue this job again, not on these nodes; the error, or None.

    Slurm then ends this start of the job with SIGTERM, and after KillWait with SIGKILL.
    """
    name, before = own_name(), own_fields().get("ExcNodeList", "(null)")
    answer = scontrol("requeue", name, seconds=_SUPERVISOR_SECONDS)
    if not answer.works:
        return answer.text
    if exclude:
        nodes = ",".join(([] if before == "(null)" else [before]) + list(exclude))
        for _ in range(_EXCLUDE_TRIES):  # only a pending job can be changed
            answer = scontrol("update", f"JobId={name}", f"ExcNodeList={nodes}", seconds=_SUPERVISOR_SECONDS)
            if answer.works:
                return None
            time.sleep(0.1)
        print(f"warning: {', '.join(exclude)} cannot be excluded ({answer.text})", flush=True)
    return None
