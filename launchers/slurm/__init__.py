"""Everything about Slurm. Only `client` calls its programs.

`launch_run` submits a run: `batch_script` renders its script, which starts `supervisor` in the job. The supervisor
asks the nodes (`node_health`), starts the ranks (`launch_attempt`, `node_entry`), and carries out what
`requeue_decision` decides. `launch_array` (of a `PrepArray`) and `submit_study` submit chains of jobs (`job_chain`).
`own_jobs` reads the queue, `check_slurm` is a check of the doctor.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
