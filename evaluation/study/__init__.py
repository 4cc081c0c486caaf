"""Masking studies: train each arm with several seeds, evaluate, and compare with confidence intervals.

`define` makes a `Study` from a config and options, and `open_unchanged` opens one to resume it. `check_inputs` reads
what the models are evaluated on. `run_study` does the work; a stop request raises `Stopped`.
`write_study_report` compares the arms. The caller passes the function that runs commands.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
