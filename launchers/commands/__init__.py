"""One file for each command, named as the command."""
