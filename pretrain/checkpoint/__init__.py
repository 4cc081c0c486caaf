"""Checkpoints that are either committed and verifiable, or not there at all.

Every rank writes its part below `step-N.tmp`, makes it durable and hashes it; rank 0 checks that nothing is missing,
writes `manifest.json` last, and renames the folder. A kill at any moment leaves the previous checkpoint as it was.

What is here needs no process group and no torch; `saver` makes checkpoints, `choose` finds the one to go on from,
`remote` keeps copies elsewhere.
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
