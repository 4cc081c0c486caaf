"""Train, load and apply tokenizers.

`train_tokenizer` makes one from a `CorpusSample`; `fetch` and `load` open one. `Encoders` uses a faster tokenizer
package only if it gives the same ids as Hugging Face's. `targets_of` and `word_differences` align two texts.
`Spelling` turns token ids into readable text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
