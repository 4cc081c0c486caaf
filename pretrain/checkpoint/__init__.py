"""Checkpoints: save, commit, verify, choose, retain and copy. A checkpoint is either complete or absent.

Every rank writes, flushes and hashes its part below `step-N.tmp`. Rank 0 checks that no file is missing, writes
`manifest.json`, and renames the folder, which commits the checkpoint. A kill at any time leaves the previous one
intact.

`Saver` saves and commits. `newest_verified` and `first_intact` choose, `read` and `verify` check one, `committed` lists
them. `Identity` holds the settings that may not change between two starts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
