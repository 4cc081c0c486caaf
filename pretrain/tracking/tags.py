"""What MLflow says of where and from what a run was trained."""

from typing import Any


def run_tags(dataset: str, environment: dict[str, Any]) -> dict[str, str]:
    """Tags of a start of a run; of several starts, MLflow keeps the last one's.

    Args:
        dataset: fingerprint of the training data.
        environment: as pretrain.environment.gather_environment gives it.
    """
    commit = environment["git_commit"]
    slurm = environment["slurm"]
    found = {
        "dataset": dataset,
        "git_commit": commit or "unknown",
        "git_changes": "true" if environment["git_changes"] else None,
        "mlflow.source.git.commit": commit,  # the interface shows this one as the version
        "mlflow.source.name": "maskwright train",
        "maskwright_version": environment["packages"]["maskwright"],
        "world_size": str(environment["processes"]),
        "hosts": ", ".join(host["host"] for host in environment["hosts"]),
        "slurm_job_id": slurm.get("SLURM_ARRAY_JOB_ID", slurm.get("SLURM_JOB_ID")),
        "slurm_array_task_id": slurm.get("SLURM_ARRAY_TASK_ID"),
    }
    return {name: value for name, value in found.items() if value is not None}
