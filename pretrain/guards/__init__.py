"""Watch a run: loss spikes, slow ranks, hangs, ranks whose weights differ.

`step_judge` decides on each step, `rollback` goes back to an earlier checkpoint, `watchdog` notices a hang.
`fault_injection` makes such faults for tests.
"""
