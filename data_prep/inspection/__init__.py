"""Look at finished data sets: verify all checksums, summarize, show a document, find collocations."""
