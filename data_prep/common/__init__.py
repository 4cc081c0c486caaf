"""What every package uses: errors of the user, typed JSON, files, URLs, processes and standard streams.

`errors` has `UserError` and text for messages. `reading` parses JSON into typed values. `files` opens, locks and
replaces files. `urls` knows addresses and secrets. `processes` starts Python processes. `output` guards the standard
streams. Import from these modules: the room re-exports nothing, so that a command loads only what it uses.
"""
