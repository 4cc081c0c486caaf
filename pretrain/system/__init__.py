"""What the machines of a run do meanwhile: each node samples itself, and rank 0 puts it into the journal."""
