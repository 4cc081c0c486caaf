"""Training on Slurm. The batch script runs `supervise` on the job's first node, which starts `node` once a rank."""
