"""Libraries that a plain installation leaves out: the error of a missing one names its extra."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def of_extra(extra: str, what: str) -> Iterator[None]:
    """A context in which libraries of ``fedlsg[extra]`` are imported; ``what``: their users.

    Raises ModuleNotFoundError that says how to install a missing one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} need {error.name}, which a plain installation leaves out: pip install "
            f"'fedlsg[{extra}]', in a clone pip install -e '.[{extra}]'",
            name=error.name,
        ) from error


def install_hint(extra: str, *libraries: str) -> str:
    """How to install an extra, in brackets; empty if all its libraries are installed."""
    missing = any(find_spec(name) is None for name in libraries)
    return f" (pip install 'fedlsg[{extra}]', in a clone pip install -e '.[{extra}]')" * missing
