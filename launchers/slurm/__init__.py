"""The only room that calls Slurm's programs.

`client` calls sbatch, squeue, sacct, scontrol and srun. `batch_script` renders a script. `supervisor` runs in a job.
`requeue_decision` decides whether a job restarts, requeues or ends.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
