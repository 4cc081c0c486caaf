"""The command `maskwright`: its commands, local starts, Slurm, and the doctor.

`commands` has one file for each command, and `arguments` the options of several. `local` and `slurm` start runs: on
this machine, and as Slurm jobs. `doctor` finds problems before a start, `watch` shows and stops runs, and `display`
prints tables and progress.
"""
