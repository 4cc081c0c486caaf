"""Maskwright in Python, for notebooks and scripts: `import maskwright as mw`.

`train_tokenizer` and `prepare` turn text into a `DataSet`. `train` trains and returns a `Run`. `evaluate` and `fill`
use a model. Each does the work of the command with its name, and its options have the names of the command's options. A
call raises `UserError` with the message that the command prints.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
