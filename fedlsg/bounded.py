"""Reading files of others within bounds: a small file cannot make the process allocate much.

The size that a file claims, or unpacks to, is checked before it is read. Every error is a
ValueError with the expected and the found number; its caller names the file. Arrays that fedlsg
writes are never compressed, so no array takes more memory than its file has bytes. A table of the
user may be compressed, within the memory of the machine.
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
"""Most bytes of a JSON file; the largest are of runs with hundreds of thousands of clients."""
LONGEST_TOML = 2**20
"""Most bytes of a TOML file."""
LONGEST_TABLE = 2**28
"""Most bytes of each of rounds.csv, bytes.csv and clients.csv."""
MOST_VALUES = 2**22
"""Most lists, entries and members in a JSON file: an empty list takes 3 bytes there, and 64 of
memory.
"""
MOST_CHARGES = 2**26
"""The same for a line of a ledger, which has all charges of a round."""
MAX_TOML_LEVELS = 32
"""Most levels of lists and tables in a TOML file: the parser's time grows with the square of a
key's parts.
"""
MOST_DIGITS = 20
"""Most digits of a whole number: enough for any count, and for a seed of 64 bits."""
_TEXT = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"""|' + r"'''.*?'''" + r'|"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
"""Comments and texts of TOML, in which brackets and dots do not count."""
_DOTTED = re.compile(rf"(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_TOML_LEVELS}}}")
"""A key of more than MAX_TOML_LEVELS parts."""


def read(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file, at most ``most``. Raises OSError; ValueError for more."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, expected at most {most:,}")
        return file.read(size)


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    """The text of a UTF-8 file of at most ``most`` bytes, whose lines end with "\\n"."""
    return read(path, most).decode().replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError; ValueError, also for absurd length or depth."""
    return parse_json(read(path))


def parse_json(content: bytes, most: int = MOST_VALUES) -> Any:
    """The content of JSON with at most ``most`` values. Raises ValueError."""
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values > most:
        raise ValueError(f"it has {values:,} values, expected at most {most:,}")
    try:
        return json.loads(content, parse_int=whole)
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None


def whole(text: str) -> int:
    """A whole number of a file. Raises ValueError for more than MOST_DIGITS digits."""
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
    """Raise ValueError if a table or list has a whole number of more than MOST_DIGITS digits."""
    for item in value.values() if isinstance(value, Mapping) else value:  # type: ignore[attr-defined]
        if isinstance(item, int) and abs(item) >= 10**MOST_DIGITS:
            raise ValueError(f"it has a number of more than {MOST_DIGITS} digits")
        if isinstance(item, Mapping | list):
            _check_numbers(item)


def parse_array(content: bytes) -> "np.ndarray":
    """An array of numpy's format. Raises ValueError if its header claims another size."""
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
    """The arrays of an uncompressed archive of numpy.

    Raises ValueError for an array that is not in ``names``, or comes twice.
    """
    check_stored(io.BytesIO(content))
    with _open(io.BytesIO(content)) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        if sorted(members) != sorted({*members} & {*names}):
            unknown = next((name for name in members if name not in names), members[0])
            raise ValueError(f"it has an array {unknown[:80]!r} too many")
        return {name: parse_array(archive.read(f"{name}.npy")) for name in members}


def check_stored(file: IO[bytes] | Path) -> None:
    """Raise ValueError for an archive with a compressed member, or members that share bytes.

    Any other archive takes as much memory as it has bytes. A file that is no archive is accepted. A
    stream is at its beginning afterwards.
    """
    if zipfile.is_zipfile(file):
        with _open(file) as archive:
            members = archive.infolist()
            assert archive.fp is not None
            _check_total(members, archive.fp.seek(0, os.SEEK_END))
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed, expected arrays as they are")
    if not isinstance(file, Path):
        file.seek(0)


def check_unpacked(path: Path, most: int) -> None:
    """Raise ValueError for an archive that unpacks to more than ``most`` bytes.

    The claimed sizes are enough: readers never unpack more of a member than it claims.
    """
    if zipfile.is_zipfile(path):
        with _open(path) as archive:
            _check_total(archive.infolist(), most)


def _check_total(members: Collection[zipfile.ZipInfo], most: int) -> None:
    """Raise ValueError if members unpack to more than ``most`` bytes."""
    total = sum(member.file_size for member in members)
    if total > most:
        raise ValueError(f"it unpacks to {total:,} bytes, expected at most {most:,}")


def _open(file: IO[bytes] | Path) -> zipfile.ZipFile:
    """A ZIP archive. Raises ValueError for a damaged one."""
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None


def ram() -> int:
    """Bytes of memory of this machine, or of the container in which the process runs."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            size = min(size, int(Path(limit).read_text()))
    return size
