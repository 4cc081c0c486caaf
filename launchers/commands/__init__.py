"""The commands of `maskwright`, one file for each, named as the command.

`prep_info.py` is `maskwright prep info`. A file reads the options, calls a room that does the work, and prints the
result. `launchers.arguments` has the options of several commands, `launchers.display` shared output.
"""
