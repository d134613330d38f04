"""Files of others are read within bounds: what a small file can claim, or be unpacked to, is
compared with what may be read, before it is read.

Every error is a ValueError that says what was expected and what was found; its caller names the
file. Arrays that fedlsg writes are never compressed, so no array takes more memory than its file
has bytes; a table of the user's own may be compressed, within the memory of the machine.
"""

import io
import json
import math
import os
import re
import tomllib
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAX_JSON_BYTES = 2**26
"""Bytes of a JSON file; the largest are of runs with hundreds of thousands of clients."""
LONGEST_TOML = 2**20
LONGEST_TABLE = 2**28
"""Bytes of rounds.csv, bytes.csv and clients.csv, each."""
MOST_VALUES = 2**22
"""Lists, entries and their members in a JSON file: an empty list takes 3 bytes there, and 64 of
memory."""
MOST_CHARGES = 2**26
"""Of a line of a ledger, which has all charges of a round."""
MAX_TOML_LEVELS = 32
"""Levels of lists and tables in a TOML file. Its parser needs the square of a key's parts."""
MOST_DIGITS = 20
"""Of a whole number: more than any count, and than a seed of 64 bits."""
_TEXT = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"""|' + r"'''.*?'''" + r'|"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
"""Comments and texts of TOML, in which brackets and dots say nothing."""
_DOTTED = re.compile(rf"(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_TOML_LEVELS}}}")


def read(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file of at most this many. Raises OSError; ValueError for more."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, expected at most {most:,}")
        return file.read(size)


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    """The same as UTF-8, with ends of lines as Python's own reading has them."""
    return read(path, most).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises OSError; ValueError, also for absurd length or depth."""
    return parse_json(read(path))


def parse_json(content: bytes, most: int = MOST_VALUES) -> Any:
    """What JSON holds, which has at most so many values. Raises ValueError."""
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values > most:
        raise ValueError(f"it has {values:,} values, expected at most {most:,}")
    try:
        return json.loads(content, parse_int=whole)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None


def whole(text: str) -> int:
    """A whole number of a file. Raises ValueError for one that counts nothing."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(text):,} digits, expected {MOST_DIGITS} at most")
    return int(text)


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file. Raises OSError; ValueError, also for absurd length or depth."""
    text = read_text(path, LONGEST_TOML)
    depth = deepest = 0
    bare = _TEXT.sub("s", text)
    for sign in re.findall(r"[\[\]{}]", bare):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_TOML_LEVELS or _DOTTED.search(bare):
        raise ValueError(f"its tables are nested more than {MAX_TOML_LEVELS} deep")
    table = tomllib.loads(text)
    _check_numbers(table)
    return table


def _check_numbers(value: object) -> None:
    for item in value.values() if isinstance(value, Mapping) else value:  # type: ignore[attr-defined]
        if isinstance(item, int) and abs(item) >= 10**MOST_DIGITS:
            raise ValueError(f"it has a number of more than {MOST_DIGITS} digits")
        if isinstance(item, Mapping | list):
            _check_numbers(item)


def parse_array(content: bytes) -> "np.ndarray":
    """An array of numpy's format. Raises ValueError where its header claims other bytes than
    follow.
    """
    import numpy as np

    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        header = np.lib.format.read_array_header_2_0
    shape, _, dtype = header(stream)
    claimed = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or claimed != len(content) - stream.tell():
        raise ValueError(
            f"its header claims {claimed:,} bytes of {dtype} as {shape}, and "
            f"{len(content) - stream.tell():,} follow"
        )
    stream.seek(0)
    array: np.ndarray = np.load(stream, allow_pickle=False)
    return array


def parse_arrays(content: bytes, names: Collection[str]) -> "dict[str, np.ndarray]":
    """Arrays of an archive of numpy that have these names, no others and none twice, uncompressed.
    Raises ValueError.
    """
    check_stored(io.BytesIO(content))
    with _opened(io.BytesIO(content)) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if sorted(members) != sorted({*members} & {*names}):
            unknown = next((name for name in members if name not in names), members[0])
            raise ValueError(f"it has an array {unknown[:80]!r} too many")
        return {name: parse_array(archive.read(f"{name}.npy")) for name in members}


def check_stored(file: IO[bytes] | Path) -> None:
    """Raise ValueError for an archive with a compressed member, or members that share bytes: what
    is read from others takes as much memory as they have bytes. What is no archive passes; a stream
    is at its beginning then.
    """
    if zipfile.is_zipfile(file):
        with _opened(file) as archive:
            members = archive.infolist()
            _check_total(members, _size(archive))
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed, expected arrays as they are")
    if not isinstance(file, Path):
        file.seek(0)


def check_unpacked(path: Path, most: int) -> None:
    """Raise ValueError for an archive that would be unpacked to more than ``most`` bytes. Readers
    of an archive never unpack more of a member than it says.
    """
    if zipfile.is_zipfile(path):
        with _opened(path) as archive:
            _check_total(archive.infolist(), most)


def _check_total(members: Collection[zipfile.ZipInfo], most: int) -> None:
    total = sum(member.file_size for member in members)
    if total > most:
        raise ValueError(f"it unpacks to {total:,} bytes, expected at most {most:,}")


def _opened(file: IO[bytes] | Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None


def _size(archive: zipfile.ZipFile) -> int:
    assert archive.fp is not None
    return archive.fp.seek(0, os.SEEK_END)


def ram() -> int:
    """Bytes of memory of this machine, or of the container that it is."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            size = min(size, int(Path(limit).read_text()))
    return size
