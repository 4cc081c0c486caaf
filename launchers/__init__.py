"""What users type: the command `maskwright`, local and ssh starts, Slurm, and the doctor."""
