"""Show a run: progress line, summary, environment, node metrics, profile, predictions, HTML page.

`batch_replay` rebuilds the batch of any step: its documents and masks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
