"""Maskwright in Python, for notebooks and scripts: `import maskwright as mw`.

`train_tokenizer` and `prepare` turn text into a `DataSet`; `show_masks` shows how a text is masked. `train` trains and
returns a `Run`. `evaluate` and `fill` use a model. Each call runs a command in a separate process, and takes the
options of the command: `--seq-len 64` is `seq_len=64`. A list repeats an option. None leaves it out.

A call raises `UserError` with the message of the command. Ctrl-C, which is also "Interrupt the kernel" of a notebook,
goes to the command. After the command exited, KeyboardInterrupt is raised.
"""

import sys

import lazy_loader

from data_prep.common.errors import ON_WINDOWS

if sys.platform == "win32":
    raise ImportError(ON_WINDOWS)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
