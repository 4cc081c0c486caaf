"""The order, packing and reading of the training stream."""
