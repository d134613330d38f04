"""``python -m docs._sphinx.files``: the tables of docs/files.md, from the declaration of all files.

``tests/simulations/storage/test_declared_files.py`` compares the page with what this makes.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from fedlsg.simulations.storage.declared import COMMANDS, NODE, RUN, Declared

PAGE = Path(__file__).resolve().parents[1] / "files.md"
HEAD = "| file | class | what it is | who writes it |\n|---|---|---|---|\n"


def anew(page: str) -> str:
    """The page with its tables of files made anew, in the order of run, commands, deployed
    client.
    """
    tables = iter([_table(RUN), _table(COMMANDS, "private"), _table(NODE)])
    return re.sub(
        re.escape(HEAD) + r"(\|[^\n]*\n)*", lambda _: "".join(chain([HEAD], next(tables))), page
    )


def _table(files: Iterable[Declared], kind: str = "secret") -> Iterator[str]:
    for one in files:
        yield (
            f"| `{one.pattern}` | {kind if one.secret else 'public'} | {one.what} | {one.writer} "
            "|\n"
        )


if __name__ == "__main__":
    PAGE.write_text(anew(PAGE.read_text()))
