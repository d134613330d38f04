"""The commands of a how-to document, so that a test can follow it to the letter.

A block of commands is a fenced ``bash`` block whose first line is a comment that names the machines
it is for; "leave it running" there says that it does not end.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```bash\n# ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
STAYS = "leave it running"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Commands of a document: under which heading, for which machines, and whether they run on."""

    heading: str
    machines: tuple[str, ...]
    text: str
    stays: bool


def blocks(document: Path, machines: tuple[str, ...]) -> list[Block]:
    """The blocks of a document in their order. Raises ValueError for one that names no machine."""
    text = document.read_text()
    found = []
    for match in FENCE.finditer(text):
        title = match[1].split(":")[0]
        names = tuple(name for name in machines if re.search(rf"\b{name}\b", title))
        if not names:
            raise ValueError(
                f"expected one of {machines} in the first line of a block, found {match[1]!r}"
            )
        headings = HEADING.findall(text[: match.start()])
        found.append(
            Block(heading=headings[-1], machines=names, text=match[2], stays=STAYS in match[1])
        )
    if text.count("```bash") != len(found):
        raise ValueError(
            f"{document}: a bash block does not begin with a comment that names its machines"
        )
    return found
