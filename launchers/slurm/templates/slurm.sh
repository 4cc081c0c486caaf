#!/usr/bin/env bash
# @{purpose}
# It may be read, edited and submitted again with sbatch.

# Slurm may start the job again; it then appends to the log. Before the time limit Slurm signals the process of this
# script only (B:), which tells the run to save and stop.
@{directives}

set -e
# Modules, conda and the like. Many of them fail under `set -u`, which therefore comes later.
@{setup}
set -uo pipefail

cd @{working_dir}
@{environment}
exec @{command}
