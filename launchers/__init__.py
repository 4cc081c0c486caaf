"""The command line, local runs and Slurm jobs."""
