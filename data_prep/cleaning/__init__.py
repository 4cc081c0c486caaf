"""Optional filters on documents: what they drop is counted, and is the same on any machine and with any workers.

Pure functions over texts and arrays; docs/cleaning.md says what each filter does, and where it comes from.
"""
