"""A cache on disk of bounded size for files, and parts of files, behind URLs."""
