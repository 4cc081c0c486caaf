"""Checkpoints: save, verify, choose, retain and copy. A checkpoint is either complete and verifiable, or absent.

Every rank writes, flushes and hashes its part below `step-N.tmp`. Rank 0 checks that no file is missing, writes
`manifest.json` last, and renames the folder. A kill at any time leaves the previous checkpoint unchanged.

The exported names need neither torch nor a process group. `saver` writes checkpoints, `choose_checkpoint` finds the
one to resume from, `remote_copies` keeps copies behind a URL.
"""

from pretrain.checkpoint.manifest import Checkpoint, Files, hash_file, read, verify, write_manifest
from pretrain.checkpoint.retention import committed, discard, remove_leftovers, retained, set_aside

__all__ = [
    "Checkpoint",
    "Files",
    "committed",
    "discard",
    "hash_file",
    "read",
    "remove_leftovers",
    "retained",
    "set_aside",
    "verify",
    "write_manifest",
]
