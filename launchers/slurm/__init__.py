"""Everything about Slurm. Only `client` calls its programs.

`submission` prepares a run: `batch_script` renders its script, which starts `supervisor` in the job. The supervisor
asks the nodes (`node_health`), starts the ranks (`launch_attempt`, `node_entry`), and carries out what
`requeue_decision` decides. `prep_array` and `study_array` submit chains of jobs (`job_chain`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
