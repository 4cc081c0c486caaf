"""Before a run: its memory, its speed, and the preflight checks that refuse a bad start."""
