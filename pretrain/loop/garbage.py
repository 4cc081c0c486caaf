"""Collection of Python's garbage at the same steps on every rank, not at random times on single ranks.

A full collection walks through every object of PyTorch and DeepSpeed, and the other ranks wait for the rank that makes
it. (torchtitan and Megatron-LM collect at chosen steps too, but only young objects, so that old cycles stay.)
"""

import gc

_EVERY = 200  # steps


class ChosenCollections:
    """A context manager: inside, garbage is collected only where `after_step` says.

    Collections leave out the objects that exist at its start, until its end. So they take milliseconds.
    """

    def __enter__(self) -> "ChosenCollections":
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *error: object) -> None:
        gc.enable()
        gc.unfreeze()

    def after_step(self, step: int) -> None:
        """Collect the reference cycles of the last steps, if this step is one of those that all ranks choose."""
        if step % _EVERY == 0:
            gc.collect()
