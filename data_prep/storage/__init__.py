"""Files and folders on disk: compressed files, a bounded cache of remote files, kinds of folders.

`Cache` keeps files, and parts of files, behind URLs. `decompressed` and `decompressed_chunks` read .gz and .zst files.
`read_text`, `read_lines` and `read_json_lines` read text files of users.
`require_run` and `not_a` make the message when a command gets a folder of another kind.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
