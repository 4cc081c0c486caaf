"""`maskwright report`: a run as one HTML page."""
