"""What a limit of this process's memory does to Ray."""

import sys


def limited_memory() -> str:
    """What a limit of address space (``ulimit -v``) does to Ray, and the way out; empty without a limit.

    Ray's processes reserve far more than they use, 30 % of the machine's memory for its store alone, and abort without
    a word of ours.
    """
    if sys.platform == "win32":
        return ""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return (
        f"processes may reserve {limit / 2**30:.3g} GiB of memory here (ulimit -v), and Ray's reserve more than they "
        "use: lift that limit if Ray fails, or take engine=local"
    )
