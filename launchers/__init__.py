"""The command `maskwright`: its commands, local and ssh starts, Slurm, and the doctor.

`commands` has one file for each command. `local`, `hosts` and `slurm` start runs: on this machine, over ssh, and as
Slurm jobs. `doctor` finds problems before a start, `watch` shows and stops runs, and `display` prints tables and
progress.
"""
