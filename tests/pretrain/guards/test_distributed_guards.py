"""Two ranks: skipped steps and trial steps leave no trace, and differing replicas are found, for ZeRO 0 to 3."""

from tests.support.ranks import run_ranks


def test_skipped_and_trial_steps_leave_no_trace_and_flipped_bits_are_seen():
    run_ranks("tests.pretrain.guards.guards_worker", 2)
