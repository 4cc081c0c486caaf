"""`maskwright doctor`: find problems of a machine, data set, tracking server or cluster before a run starts.

`finding.py` says what a check is and what it finds, `run_checks.py` runs them. Each other file holds the checks of one
subject: functions that look, and pure functions (`judge_*`) that say what to think of what was seen.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
