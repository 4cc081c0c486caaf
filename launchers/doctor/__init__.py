"""`maskwright doctor`: what is wrong with a machine, a data set, a tracking server or a cluster, before a run meets it.

`finding.py` says what a check is and what it finds, `run_checks.py` runs them. Each other file holds the checks of one
subject: functions that look, and pure functions (`judge_*`) that say what to think of what was seen.
"""
