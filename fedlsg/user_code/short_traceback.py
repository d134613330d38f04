"""Errors that fedlsg explains reach their caller without the frames inside of fedlsg.

The message says what was expected, what was found and what to do; twenty frames above it hide the
caller's own line. FEDLSG_TRACEBACK=full keeps them, and the errors behind.
"""

import os
import sys
from collections.abc import Callable
from dis import opname
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from fedlsg.user_code.failure import OWN, is_users, left_users_code

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "FEDLSG_TRACEBACK"
"""The environment variable that keeps all frames."""
FULL = "full"
"""Its value."""


def short_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors by a ``raise`` of fedlsg have no frames inside of fedlsg.

    Errors of a user's code, and errors that fedlsg does not explain, keep all of their frames.
    Ctrl-C has none, so that the lines printed before it are read.
    """

    @wraps(function)
    def shortened(*args: P.args, **given: P.kwargs) -> T:
        __tracebackhide__ = True  # IPython and pytest show no frame of this one either
        try:
            return function(*args, **given)
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get(VARIABLE) == FULL or not explained(error):
                raise
            raise error.with_traceback(None) from None  # FEDLSG_TRACEBACK=full shows all frames

    return shortened


def explained(error: BaseException) -> bool:
    """Whether a ``raise`` of fedlsg made an error, and no frame of a user's code is in it.

    True for the user's Ctrl-C as well.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    last = _innermost(error.__traceback__)
    if last is None or left_users_code(error):
        return False
    code = last.tb_frame.f_code
    return (
        code.co_filename.startswith(OWN) and opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    )


def user_level() -> int:
    """The ``stacklevel`` with which a warning of the function that asks names the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _innermost(step: TracebackType | None) -> TracebackType | None:
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step
