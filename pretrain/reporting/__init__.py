"""Show a run: progress line, summary, environment, node metrics, profile, predictions, charts, HTML page.

`png_charts` is the only importer of matplotlib. `batch_replay` shows the documents and masks of any step again.
"""
