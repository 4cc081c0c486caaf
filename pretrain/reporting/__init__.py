"""Show a run: progress line, summary, environment, node metrics, profile, predictions, charts, HTML page.

`png_charts` is the only importer of matplotlib. `batch_replay` shows the documents and masks of any step again.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
