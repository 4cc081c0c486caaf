"""The segments of shared memory (69 MB a rank) by which DeepSpeed's ranks of one machine sum on CPU.

DeepSpeed leaves them in /dev/shm for good; without a name they go with the last process, however that ends.
"""

import os
from pathlib import Path


def unlink_segments(address: str, port: int | str, rank: int | str = "*") -> None:
    """Take away the names of the segments of a rank, or of all, of the process group at this address."""
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
    for path in Path("/dev/shm").glob(name):
        path.unlink(missing_ok=True)
