"""The batch job's own process, on its first node: `python -m launchers.slurm.supervise JOB_JSON`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from data_prep.errors import UserError
from launchers.slurm.attempt import prepare
from launchers.slurm.job import Job, read_job
from launchers.slurm.step import on_nodes
from pretrain.run_folder import EXIT_CODES, RunFolder


class Supervisor:
    """Runs the attempts of a job. Slurm's warning before its end (USR1) becomes a request to save and stop."""

    def __init__(self, job: Job, job_id: int):
        self.job, self.job_id = job, job_id
        self.run = RunFolder(job.run_dir)
        self.warned = False
        signal.signal(signal.SIGUSR1, self._on_warning)

    def supervise(self, hosts: list[str]) -> int:
        """Train; the exit code of the job: 0 completed, 75 stopped with a checkpoint, 1 failed."""
        attempt = prepare(self.job, self.job_id, hosts)
        self.run.stop.unlink(missing_ok=True)  # left by an earlier job
        before = self._status_time()
        start = int(os.environ.get("SLURM_RESTART_COUNT", "0")) + 1
        where = f"{' '.join(hosts)}, rank 0 at {hosts[0]}:{attempt.port}"
        print(f"job {self.job_id} (start {start}) on {where}", flush=True)
        # --wait: when one node's task has ended, well or badly, the others are killed after 60 s.
        step = ["srun", "--ntasks-per-node=1", f"--cpus-per-task={os.environ['SLURM_CPUS_PER_TASK']}"]
        step += ["--wait=60", "--kill-on-bad-exit=0", *on_nodes(self.job, "launchers.slurm.node", Path.cwd())]
        code = subprocess.Popen(step, env=os.environ | attempt.environment).wait()
        # DeepSpeed's launcher can exit 0 though its processes were killed, so the run's own status has the last word,
        # unless an earlier job left it.
        state = self.run.read_status().state if self._status_time() != before else "failed"
        return self._conclude(code, EXIT_CODES[state])

    def _conclude(self, code: int, state: int) -> int:
        if code == 0 and state == 0:
            print(f"job {self.job_id}: the run is complete", flush=True)
            return 0
        if state == 75 and self.warned:
            print(f"job {self.job_id}: stopped with a checkpoint before the time limit, requeued to go on", flush=True)
            subprocess.run(["scontrol", "requeue", str(self.job_id)])
            return 75
        if state == 75:
            print(f"job {self.job_id}: stopped with a checkpoint on request; submit it again to go on", flush=True)
            return 75
        print(f"job {self.job_id}: failed (srun exit code {code})", file=sys.stderr, flush=True)
        return 1

    def _status_time(self) -> int | None:
        return self.run.status.stat().st_mtime_ns if self.run.status.exists() else None

    def _on_warning(self, number: int, frame: FrameType | None) -> None:
        self.warned = True
        print(f"job {self.job_id}: Slurm will end it soon, asking the run to save and stop", flush=True)
        self.run.stop.touch()


def granted_hosts() -> list[str]:
    """The allocation's host names, in the order of SLURM_NODEID."""
    shown = subprocess.run(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], capture_output=True)
    return shown.stdout.decode().split()


def main(arguments: list[str]) -> int:
    """Supervise the job; 1 and one sentence when it cannot start."""
    try:
        job = read_job(Path(arguments[0]))
        return Supervisor(job, int(os.environ["SLURM_JOB_ID"])).supervise(granted_hosts())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
