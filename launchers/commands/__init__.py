"""The commands of `maskwright`, one file each, with the name of the command."""
