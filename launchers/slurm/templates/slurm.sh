#!/usr/bin/env bash
# @{purpose}
# You may edit it and submit it again with sbatch.

# After a restart the job appends to the log. Before the time limit, Slurm sends a signal to the process of this script
# only (B:). It then asks the run to save and stop.
@{directives}

set -e
# Modules, conda and similar setup. Many of them fail under `set -u`, so it is set afterwards.
@{setup}
set -uo pipefail

cd @{working_dir}
@{environment}
exec @{command}
