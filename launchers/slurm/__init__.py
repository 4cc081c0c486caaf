"""Training on Slurm: the batch script runs `supervise` on the job's first node, which runs `node` on each."""
