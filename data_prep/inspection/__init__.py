"""Inspect finished data sets, for `prep info`, `prep show`, `prep verify` and `prep weights`.

`survey` samples raw text, for `init`.

`verify_data_set` checks all checksums, `summary` counts documents and tokens, `document` decodes one document, and
`TokenWeights` weights tokens for masking.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
