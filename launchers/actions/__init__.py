"""What a command and the Python package both do, after the command line or the arguments of a call have been read.

`make_tokenizer` and `run_preparation` make a tokenizer and a data set; `find_text` finds their inputs.
`print_document` prints a document of a data set, and `print_masks` the masks of a text. `run_evaluation` evaluates
models, and `likely_tokens` fills masks.
`checked` checks the arguments of a call.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
