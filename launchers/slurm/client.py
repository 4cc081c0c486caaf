"""The Slurm client: every call of sbatch, squeue, srun, salloc, scontrol and scancel."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.processes import ProgramAnswer, ask_program, die_with_parent

PROGRAMS = ("sbatch", "srun", "salloc", "scontrol", "squeue", "scancel")
MAX_ARRAY_SIZE = 1001  # Slurm's default; the largest index of a job array is one less
COMMENT = "maskwright:"  # begins the comment of Maskwright's jobs; the run folder follows, if the job trains a run
_SECONDS = 15.0  # time limit of a call; the controller may be busy
_SUPERVISOR_SECONDS = 60.0  # the same, inside a job
_KILL_WAIT = 30.0  # seconds, Slurm's default
_EXCLUDE_TRIES = 20  # a tenth of a second apart, within Slurm's KillWait
_STEP_END_SECONDS = 20.0  # for srun to end its tasks after SIGTERM
FIELDS = {"id": "%i", "state": "%T", "reason": "%r", "used": "%M", "limit": "%l", "start": "%S", "nodes": "%D"}
FIELDS |= {"name": "%j", "comment": "%k"}
SEPARATOR = "\x1f"  # names and paths may contain any printable character


@dataclass(frozen=True)
class QueuedJob:
    """A pending or running job of Maskwright.

    Attributes:
        id: job id for scancel; ARRAY_TASK for an element of an array.
        state: Slurm's state, for example PENDING. reason: reason for waiting.
        used, limit: times in Slurm's format. start: actual or expected start time, if known.
        run: folder of the run that it trains; None for other jobs.
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
        """Whether it waits for its first start or a restart."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")

    def trains(self, run: Path) -> bool:
        """Whether it is a job of this run."""
        return self.run is not None and self.run.resolve() == run.resolve()

    def cancel_while_pending(self) -> str | None:
        """Cancel it unless it runs. Returns the error, or None."""
        answer = _ask("scancel", "--state=PENDING", self.id)
        return None if answer.works else answer.text


def _ask(*command: str, seconds: float | None = _SECONDS, variables: Mapping[str, str] | None = None) -> ProgramAnswer:
    """Run a Slurm program and wait for it."""
    missing = ProgramAnswer(False, f"{command[0]} was not found: run this on a login node of a Slurm cluster")
    return ask_program(*command, seconds=seconds, variables=variables) or missing


def missing_programs() -> list[str]:
    """The programs of Slurm that are not on the search path."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def scontrol(*arguments: str, seconds: float = _SECONDS) -> ProgramAnswer:
    """Call `scontrol ARGUMENTS`."""
    return _ask("scontrol", *arguments, seconds=seconds)


def settings() -> dict[str, str]:
    """The cluster's settings; empty if the controller does not answer."""
    answer = scontrol("show", "config")
    return dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", answer.text, re.MULTILINE)) if answer.works else {}


def max_array_size() -> int:
    """The cluster's MaxArraySize, or Slurm's default if it cannot be asked."""
    return int(settings().get("MaxArraySize", MAX_ARRAY_SIZE))


def kill_wait() -> float:
    """Seconds from Slurm's SIGTERM to its SIGKILL."""
    match = re.match(r"\d+", settings().get("KillWait", ""))
    return float(match[0]) if match else _KILL_WAIT


def allocated_hosts() -> list[str]:
    """The hosts of this job's allocation, in Slurm's order; empty if scontrol does not answer."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")  # for example n[1-3]
    answer = scontrol("show", "hostnames", nodes, seconds=_SUPERVISOR_SECONDS)
    return answer.text.split() if answer.works else []


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


def run_timed_step(step: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """Run a job step, the command line of srun, and end it after `seconds`.

    Returns the exit code, None for a step that did not end in time, and what it wrote to stdout and stderr. Raises
    UserError if srun is not installed.
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
        end_step(process)  # its output is not read: a helper of srun may keep the pipe open while a node hangs
        return None, "", ""
    return process.returncode, output, errors


def start_step(step: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a job step in a separate session: a signal to this process then does not make srun kill its tasks."""
    return subprocess.Popen(
        step, env=environment, start_new_session=True, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
    )


def end_step(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Make srun kill its tasks. Nodes that do not answer are not waited for."""
    process.terminate()
    try:
        process.wait(_STEP_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def allocate(nodes: int, options: Sequence[str], command: Sequence[str]) -> int:
    """Run a command in a new allocation, and return its exit code. Raises UserError if salloc is not installed."""
    try:
        return subprocess.run(["salloc", f"--nodes={nodes}", *options, *command]).returncode
    except FileNotFoundError:
        raise UserError("salloc was not found: run this on a login node of a Slurm cluster") from None


def check_available() -> None:
    """Raise UserError if sbatch is not installed."""
    if "sbatch" in missing_programs():
        raise UserError("sbatch was not found: run this on a login node of a Slurm cluster")


def submit(script: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> str:
    """Submit a script, `sbatch OPTIONS SCRIPT`, and return the job's id. The job inherits `variables` as well.

    Raises UserError if sbatch is not installed, or refuses the job (with its message).
    """
    answer = _ask("sbatch", "--parsable", *options, str(script), seconds=None, variables=variables)
    if answer.works:
        return answer.text.split(";")[0]
    if "sbatch" in missing_programs():
        raise UserError(f"{answer.text} (the script is at {script})")
    message = " ".join(line.removeprefix("sbatch: error: ") for line in answer.text.splitlines())
    raise UserError(f"sbatch refused the job: {message} (the script is at {script})")


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel unfinished jobs of this user."""
    if job_ids:
        _ask("scancel", "--quiet", *job_ids, seconds=None)


def still_queued(job_ids: Sequence[str]) -> list[str]:
    """The pending and running jobs among these, in the given order.

    Raises UserError if squeue is not installed, or the controller does not answer.
    """
    if not job_ids:
        return []
    answer = _ask("squeue", "--noheader", "--format=%F", f"--jobs={','.join(job_ids)}")  # %F: an array's id
    # Slurm forgets a job some minutes after its end. For a single forgotten job, squeue reports an error.
    if not answer.works and "Invalid job id" not in answer.text:
        raise UserError(f"Cannot find out whether jobs {' '.join(job_ids)} still run: {answer.text}")
    queued = set(answer.text.split()) if answer.works else set()
    return [job_id for job_id in job_ids if job_id in queued]


def own_jobs(seconds: float = _SECONDS) -> tuple[list[QueuedJob], str | None]:
    """This user's jobs of Maskwright, oldest first, and the reason if Slurm does not answer."""
    columns = SEPARATOR.join(FIELDS.values())
    answer = _ask("squeue", "--me", "--array", "--noheader", f"--format={columns}", seconds=seconds)
    if not answer.works:
        return [], answer.text.splitlines()[-1]
    jobs = [job for line in answer.text.splitlines() if (job := parse_job(line))]
    return sorted(jobs, key=lambda job: [int(part) for part in re.findall(r"\d+", job.id)]), None


def parse_job(line: str) -> QueuedJob | None:
    """Parse a line of squeue; None if it is not a job of Maskwright."""
    parts = line.split(SEPARATOR)
    if len(parts) != len(FIELDS):
        return None
    job = dict(zip(FIELDS, (part.strip() for part in parts), strict=True))
    comment = job.pop("comment")
    if not comment.startswith(COMMENT):
        return None
    folder = comment.removeprefix(COMMENT)
    return QueuedJob(**job, run=Path(folder) if folder else None)


def own_name() -> str:
    """The name of this process's job for scontrol: JOB, or ARRAY_TASK for an element of an array.

    The SLURM_JOB_ID of an array's last element is the array's id, and scontrol would apply it to all elements.
    """
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def own_fields() -> dict[str, str]:
    """The fields of this job from `scontrol show job`; empty if the controller does not answer."""
    answer = scontrol("--oneliner", "show", "job", own_name(), seconds=_SUPERVISOR_SECONDS)
    return dict(re.findall(r"(\w+)=(\S*)", answer.text)) if answer.works else {}


def requeue(exclude: Sequence[str]) -> str | None:
    """Requeue this job, and exclude these nodes. Returns the error, or None.

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
