"""The errors that are the user's to mend: the command line prints their one sentence and no traceback."""


class UserError(Exception):
    """Bad input. The message is one sentence: what is wrong, where, and what to do about it."""


class DamagedData(UserError):
    """Stored bytes differ from the checksum or count recorded for them."""
