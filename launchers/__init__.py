"""The command `maskwright`: its commands, local and ssh starts, Slurm, and the doctor."""
