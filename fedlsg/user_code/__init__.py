"""Code of a user's own by its name.

A name is ``FILE.py:NAME`` or ``MODULE:NAME``, an object given in Python, or an entry point.

    # who names code on a command line, in Python, or trusts a run directory
    permit("mine.py:recipe")
    # runs mine.py once a process, and returns its function ``recipe``
    build = load("mine.py:recipe")

A setting that names code runs nothing by itself: ``load`` refuses every name of a file or module
that was not permitted in this process, and nothing else here or elsewhere imports what a setting
names. A deployed client permits none. It runs what its bundle or an installed package holds,
whatever a run config names.

    names            what names mean
    permission       which of them may run
    loading          files and modules
    text_files       files from their text alone
    entry_points     what installed packages offer
    failure          errors of such code in words
    short_traceback  errors of callers, without the frames of fedlsg
    digest           SHA-256 of such code that is loaded
    source_digest    SHA-256 of the code that a name would run
    library          whether all code of a pass is library code
    objects          what objects hold, so that it can be put back
    process          what torch keeps for the whole process
    replaced         functions of libraries that code may have replaced
    fingerprint      what a model and a loss are made of, compared before each step
"""

from fedlsg.user_code.entry_points import imported, offered
from fedlsg.user_code.failure import run
from fedlsg.user_code.loading import load, modules_of_files
from fedlsg.user_code.names import (
    DATA,
    absolute,
    is_code,
    is_reference,
    name_of,
    short,
    shown,
)
from fedlsg.user_code.permission import is_permitted, permit, stands_for

__all__ = [
    "DATA",
    "absolute",
    "imported",
    "is_code",
    "is_permitted",
    "is_reference",
    "load",
    "modules_of_files",
    "name_of",
    "offered",
    "permit",
    "run",
    "short",
    "shown",
    "stands_for",
]
