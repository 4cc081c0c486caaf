#!/usr/bin/env bash
# A part of a masking study, written by `maskwright study masking --slurm`. It may be read, edited and submitted again
# with sbatch; runs that are done are not done again.

# Before the time limit Slurm tells the command (B:) to save and stop, and the command queues its job again.
@{directives}

set -e
@{setup}
set -uo pipefail

cd @{working_dir}
@{environment}
exec @{python} -m launchers.cli study @{command}
