"""Keep the memory of freed large tensors in this process, for the next tensor.

By default the C library gives blocks above 32 MB back to the kernel at once, and gets them page by page, each page
cleared, for the next tensor: for vectors of 22 M parameters that is most of the time of a round outside its products.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
KEPT_BYTES = 2**31 - 1


def keep() -> bool:
    """Keep up to 2 GB of freed memory at the top of the heap; whether the C library is glibc and took it.

    Costs memory: peaks of up to a fifth more (22 M parameters), and nothing is returned to the system between them.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
