"""How this process holds memory."""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of glibc's mallopt(3)


def keep_freed_memory() -> bool:
    """Keep for later what is freed, where the C library can; False where it cannot (it is not glibc).

    By default large blocks are mapped for each tensor and unmapped with it, so that every step has its pages cleared
    and mapped anew: a tenth of the time of a small model's step on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1))
