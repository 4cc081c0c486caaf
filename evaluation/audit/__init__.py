"""Audit of a run: choose steps to repeat, and compare the results with those that the run recorded.

`plan_audit` chooses the steps, `repeat_settings` gives the settings of the run that repeats them, and
`compare_results` returns the first difference. The caller trains the repeated run.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
