"""Dynamic masking: counter-based draws, so that a mask is a function of its place alone."""
