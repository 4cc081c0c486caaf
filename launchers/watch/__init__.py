"""Find runs, read their logs, and stop them."""
