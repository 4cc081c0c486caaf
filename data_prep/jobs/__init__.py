"""Preparation of a data set: plan, scan, resolve, tasks, merge.

`prepare` does all stages of a `PrepareRequest`. `plan_only`, `run_tasks` and `merge_tasks` do one stage each, as Slurm
jobs need it. `deduplication.py` decides which documents are dropped as duplicates; the comparison is in
`data_prep.cleaning`. `Workers` runs tasks in processes. A killed preparation resumes with the same command.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
