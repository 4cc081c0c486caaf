"""Plan a run: memory and speed estimates, and the preflight checks that refuse a bad start.

`Planner` plans a config. `check_start` makes all checks before a run starts, and `CHECKS` lists them. `check_tracking`
checks the address of MLflow. `measured_rate` reads a run's speed. `scaling_table` predicts steps on clusters of several
sizes. `micro_batch_sizes` lists the valid sizes of a micro-batch, and `with_micro_batch` sets one.
`choose_first_config` chooses a config for a text and a machine.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
