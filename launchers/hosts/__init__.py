"""Train on several machines over ssh, without Slurm."""
