"""Output of commands: tables, progress, JSON files, and messages for command lines that cannot be parsed.

`text_table` and `facts_table` make tables, and `text_console` prints them. `CommandProgress` is the progress line of a
command. `check_json_output` checks the file of `--json` before the work, and `write_json_output` writes it.
`explain_usage_error` describes a `UsageError`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
