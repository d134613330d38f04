"""Describe an error in a user's code in one sentence: its type, its text, and the line of code."""

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

OF_FORM = (
    "shape",
    "dtype",
    "scalar type",
    "mat1",
    "size of tensor",
    "device",
    "dimension",
    "per-example gradients",
)
"""Words in texts of errors about shapes and types: other values would fail, too."""
HOW_TO_SEE = "FEDLSG_TRACEBACK=full shows all lines"
"""The hint for an error in fedlsg's own files, which may come from a function of the user."""
MAX_ERROR_CHARACTERS = 400
"""Characters of an error's text that are shown."""
OWN = tuple(
    str(Path(__file__).resolve().parents[2] / name) + "/"
    for name in ("fedlsg", "strategies", "simulations")
)
"""Folders of fedlsg's code in a clone or a Flower bundle; a wheel has the first alone."""


class OwnEnd(BaseException):
    """An end that fedlsg itself asks for, which is not a failure of anybody's code."""


class SignalExit(SystemExit, OwnEnd):
    """The end of this process by a signal."""


@contextmanager
def without_exit() -> Iterator[None]:
    """Turn a sys.exit in a user's code, and all that is no ``Exception``, into a RuntimeError.

    The error names its line. A model or a loss that left the process would leave it with a status
    of its own: 0 for a run that failed. Ctrl-C, a signal, a closed pipe and Flower's own exit still
    end the process.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit, OwnEnd):
        raise
    except BaseException as end:
        places = [Path(step.filename).parts for step in traceback.extract_tb(end.__traceback__)]
        if isinstance(end.__context__, BrokenPipeError) or "flwr" in places[-1]:
            raise
        how = "sys.exit" if isinstance(end, SystemExit) else type(end).__name__
        raise RuntimeError(
            f"the code that the run calls left it with {how}: {describe(end)}; let it raise an "
            "error or return"
        ) from end


def run(place: str, code: Callable[[], T]) -> T:
    """The result of a user's code.

    place: its file or module, which is named if the error comes from elsewhere.
    Raises ImportError, naming file and line, for code that fails.
    """
    try:
        with without_exit():
            return code()
    except Exception as error:
        lines = [(step.filename, step.lineno) for step in traceback.extract_tb(error.__traceback__)]
        inside = [line for line in lines if line[0] == place]
        inside = inside or [line for line in lines if is_users(line[0])]
        if isinstance(error, SyntaxError) and error.filename:
            inside = [(error.filename, error.lineno)]
        where = f"{inside[-1][0]}, line {inside[-1][1]}" if inside else place
        raise ImportError(f"{where}: {type(error).__name__}: {error}") from error


@cache  # of a path and installed packages: for a process
def is_users(file: str) -> bool:
    """Whether a file of code is a user's own.

    It is if it is not of Python, of an installed package, or of fedlsg.
    """
    if (
        file.startswith(("<frozen", "<string>"))
        or "site-packages" in file
        or "dist-packages" in file
    ):
        return False
    return not str(Path(file).resolve()).startswith((*OWN, sysconfig.get_paths()["stdlib"] + "/"))


def describe(error: BaseException) -> str:
    """Type and text of an error, with the innermost line of the user's code.

    With the line of fedlsg if no line is the user's. For an error that fedlsg raised, its text
    alone.
    """
    text = " ".join(str(error).split())
    if is_own(error):
        return text
    text = (
        text.rstrip(".")
        if len(text) <= MAX_ERROR_CHARACTERS
        else f"{text[:MAX_ERROR_CHARACTERS]} ..."
    )
    steps = traceback.extract_tb(error.__traceback__)
    lines = [
        f"{Path(s.filename).name}, line {s.lineno}: {s.line}".rstrip(": ")
        for s in steps
        if is_users(s.filename)
    ]
    if not lines and steps and steps[-1].filename.startswith(OWN):
        place = f"{Path(steps[-1].filename).name}, line {steps[-1].lineno}"
        lines = [f"in fedlsg, {place}: {HOW_TO_SEE}"]
    return f"{type(error).__name__}: {text}{f' ({lines[-1]})' if lines else ''}"


def last_words(error: BaseException) -> str:
    """The text of an error that ends a command.

    With type and line if it came out of a user's code.
    """
    return describe(error) if left_users_code(error) else " ".join(str(error).split())


def left_users_code(error: BaseException) -> bool:
    """Whether an error came out of a user's code, or out of what that called."""
    return any(is_users(step.filename) for step in traceback.extract_tb(error.__traceback__))


def is_own(error: BaseException) -> bool:
    """Whether fedlsg raised an error itself.

    Then its text says what was expected, what was found and what to do.
    """
    steps = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(steps) and steps[-1].filename.startswith(OWN)


def depends_on_values(error: BaseException) -> bool:
    """Whether other rows of the same shapes and types may run without the error.

    This is a guess from the error's type and text.
    """
    first = error.__cause__ or error
    if is_own(first):
        return "finite" in str(first)
    if isinstance(
        first, TypeError | AttributeError | NameError | ImportError | NotImplementedError
    ):
        return False
    text = f"{error} {first}".lower()
    return "out of bounds" in text or not any(word in text for word in OF_FORM)
