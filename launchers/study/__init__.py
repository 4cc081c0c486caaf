"""A masking study: the same training under several ways to mask, with several seeds, and what may be concluded."""
