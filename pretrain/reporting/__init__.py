"""Show a run: progress line, summary, environment, node metrics, profile, predictions, HTML page.

`Reports` makes the reports of a rank while it trains. `summarize` gives the state of a run from its folder. `collect`
and `write_page` make the HTML page. `replay` rebuilds the batch of any step: its documents and masks. `Profile`
profiles steps.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
