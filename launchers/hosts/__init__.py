"""Training on hosts that one reaches by ssh, without a job scheduler."""
