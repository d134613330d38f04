"""Programs and command lines in Markdown."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.places import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
INDENTED = re.compile(r"(?:^ {4}\S.*\n(?:^ {5,}\S.*\n)*)+", re.MULTILINE)
INLINE = re.compile(r"`(fedlsg [^`\n]+)`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, its text, and the reason why it is not run, if there is one."""

    language: str
    text: str
    reason: str


def name_of(document: Path) -> str:
    """A document's path from the repository's root."""
    return document.relative_to(REPOSITORY).as_posix()


def blocks(text: str, language: str) -> list[Block]:
    """The fenced blocks of a language, in their order."""
    found = (
        Block(language=m["language"], text=m["text"], reason=m["reason"] or "")
        for m in BLOCK.finditer(text)
    )
    return [block for block in found if block.language == language]


def shell(text: str) -> list[str]:
    """The shell programs of a document: blocks of bash, and indented blocks."""
    return [
        *(block.text for block in blocks(text, "bash")),
        *INDENTED.findall(FENCED.sub("", text)),
    ]


def commands(text: str, program: str) -> list[str]:
    """The command lines of a document that start so, each on one line, with the shell's variables
    filled in.
    """
    return [
        line
        for part in shell(text)
        for line in _lines(part)
        if re.match(rf"{re.escape(program)}\b", line)
    ]


def _lines(program: str) -> list[str]:
    """The simple commands of a shell program, without what is in front of them."""
    text = re.sub(r"\\\n\s*", "", program)
    for name, value in re.findall(r'^\s*(\w+)="([^"\n]*)"$', text, re.MULTILINE):
        text = text.replace(f"${name}", value)
    for name, first in re.findall(r"^\s*for (\w+) in (\w+).*; do$", text, re.MULTILINE):
        text = text.replace(f"${name}", first)
    parts = [
        part.strip()
        for line in text.splitlines()
        for part in re.split(r" && | \| | > ", line.split("  #")[0])
    ]
    return [
        re.sub(r"^(?:[A-Z_]+=\S+ |timeout \d+ |srun .*?(?=fedlsg ))+", "", part) for part in parts
    ]


def inline(text: str) -> list[str]:
    """Command lines within a sentence."""
    return [re.split(r" [>|] ", line)[0] for line in INLINE.findall(FENCED.sub("", text))]
