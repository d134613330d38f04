"""What a search found, kept on disk as a hint, which the accountant checks before it is used.

A noise multiplier, a number of steps and a witness's interval take a tenth of a second to seconds
to find, and a few milliseconds to check. An entry that is stale, damaged, of another version or of
another question costs a search and never an epsilon: what is reported is always composed, and never
read from here.

Each entry is a file of its own in the folder ``accounting`` of the cache (FEDLSG_CACHE, else
``~/.cache/fedlsg``), for its owner only. Its name is a digest of the question, the code here, and
the versions of what it computes with. With FEDLSG_HINTS=off nothing is read or kept. The same
holds for a folder that cannot be used.
"""

import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fedlsg.owner_only import OTHERS_BITS, is_closed, make_folder

Answer = tuple[float, ...]

MAX_ENTRIES, MAX_ENTRY_BYTES = 2048, 2**16
"""Entries, of which the oldest quarter is removed beyond it; and bytes of one."""
USED = ("numpy", "scipy", "prv-accountant")


def checked(
    name: str,
    inputs: Sequence[object],
    *,
    holds: Callable[[Answer], bool],
    search: Callable[[], Answer],
) -> Answer:
    """The numbers that ``search`` finds for ``inputs``, or those of an earlier search if ``holds``
    of them.

    ``inputs``: all that the answer depends on, as JSON has it.
    """
    if os.environ.get("FEDLSG_HINTS") == "off":
        return search()
    question = json.dumps([name, inputs, _code()])
    hint = _read(question)
    if hint is not None and holds(hint):
        return hint
    answer = search()
    if answer and answer != hint:
        with suppress(OSError, RuntimeError):
            _write(question, answer)
    return answer


def folder() -> Path:
    """Where hints are kept. Raises RuntimeError for a user without a home."""
    return (
        Path(os.environ.get("FEDLSG_CACHE") or Path.home() / ".cache" / "fedlsg").expanduser()
        / "accounting"
    )


def file_of(question: str) -> Path:
    """The file of a question."""
    return folder() / f"{_digest(question)}.json"


def _read(question: str) -> Answer | None:
    """The answer to a question; None where there is none, or its file is damaged or could be
    another user's.
    """
    try:
        path = file_of(question)
        status = path.stat()
        is_own = os.name != "posix" or (status.st_uid == os.geteuid() == path.parent.stat().st_uid)
        if (
            not is_own
            or status.st_mode & OTHERS_BITS
            or not is_closed(path.parent)
            or status.st_size > MAX_ENTRY_BYTES
        ):
            return None
        record = json.loads(path.read_bytes())
        asked, answer, seal = record["question"], record["answer"], record["sha256"]
        if asked != question or seal != _digest(json.dumps([asked, answer])):
            return None
        answer = tuple(float(value) for value in answer)
        return answer if all(map(math.isfinite, answer)) else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(question: str, answer: Answer) -> None:
    """Put an entry into its place as a whole: of several writers one is last, and each has written
    the same.
    """
    path = file_of(question)
    make_folder(path.parent)
    record = {
        "question": question,
        "answer": answer,
        "sha256": _digest(json.dumps([question, answer])),
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # for its owner only
    try:
        with open(handle, "w") as file:
            json.dump(record, file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    files = list(path.parent.iterdir())
    if len(files) > MAX_ENTRIES:
        for old in sorted(files, key=_age)[: len(files) - MAX_ENTRIES * 3 // 4]:
            old.unlink(missing_ok=True)


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process removed it
        return math.inf


@cache  # of installed code: for a process
def _code() -> list[str]:
    """What an answer depends on besides its inputs: the accountants' code, and the versions of what
    they use.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return [
        digest,
        platform.machine(),
        platform.python_version(),
        *(version(name) for name in USED),
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
