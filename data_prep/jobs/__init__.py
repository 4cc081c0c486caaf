"""Preparation of a data set: plan, tasks, merge.

`stages` has the entry points. `preparation_plan` cuts the inputs into tasks, `task_worker` runs one in a process of
`process_pool`, and `merge` makes one data set of their shards. A killed preparation resumes with the same command.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
