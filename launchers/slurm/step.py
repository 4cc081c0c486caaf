"""What srun runs on the nodes of a job: a module of Maskwright, in the job's container where it has one."""

from pathlib import Path

from launchers.slurm.job import Job


def on_nodes(job: Job, module: str, working_dir: Path) -> list[str]:
    """The end of an srun command that runs `python -m MODULE JOB_JSON`; the container's options are pyxis'.

    --export=ALL: a job that was submitted with --export=NONE would else start its tasks without any environment.
    """
    words, python = ["--export=ALL"], str(job.python)
    if job.container:
        python = job.container.python
        words += [f"--container-image={job.container.image}", f"--container-workdir={working_dir}"]
        if job.container.mounts:
            words.append(f"--container-mounts={','.join(job.container.mounts)}")
    return [*words, python, "-m", module, str(job.path)]
