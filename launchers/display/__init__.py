"""Output of commands: tables, progress, JSON files, and messages for command lines that cannot be parsed.

`text_table` and `facts_table` make tables, and `text_console` prints them. `CommandProgress` is the progress line of a
command, and `interruptible` says after Ctrl-C how to resume. `check_json_output` checks the file of `--json` before the
work, and `write_json_output` writes it. `explain_usage_error` describes a `UsageError`. `marked` marks the predicted
tokens of a document. `show_totals` and `print_prepared` show the progress and the result of `prep` commands,
`print_scaling` a table of `plan`.
"""

from launchers.display.json_output import check_json_output, write_json_output
from launchers.display.marked_text import LEGENDS, Segment, coloured, listed, marked, plain_text
from launchers.display.prep_totals import print_prepared, show_totals
from launchers.display.progress import CommandProgress, interruptible
from launchers.display.scaling_table import print_scaling
from launchers.display.tables import facts_table, text_console, text_table
from launchers.display.usage_errors import ShowHelp, UsageError, explain_usage_error
