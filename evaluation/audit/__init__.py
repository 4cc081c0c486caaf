"""Audit of a run: choose steps to repeat, and compare the results with those that the run recorded.

`plan_audit` chooses the steps, `repeat_settings` gives the settings of the run that repeats them, and
`compare_results` returns the first difference. The caller trains the repeated run.
"""

from evaluation.audit.repeated_steps import AuditPlan, AuditResult, compare_results, plan_audit, repeat_settings
