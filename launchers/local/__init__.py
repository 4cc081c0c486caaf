"""Start the training processes of this machine and wait for their end; the demo."""
