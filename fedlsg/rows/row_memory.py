"""Where the numbers of a row are: the bytes that it has in memory, or in the file that is mapped
there.

That says which row it is. Neither the step from one row to the next says anything of it, nor the
object that holds the row: views, expanded tensors and second maps of a file have the same rows.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.rows.collate import inputs_of

ARRAYS = (Tensor, np.ndarray)
ATOMS = (str, bytes, int, float, complex, type(None), np.generic)
"""Things without parts, of which one object may be several people's."""
OBJECT_BYTES = 2**16
"""What a thing counts whose bytes are unknown, such as an image of Pillow."""
NUMBER_BYTES = 8
"""What a number of Python counts."""
MOST_MEMBERS = 16
"""So many members of a list in a row are looked at."""
MOST_SHARED = 6
"""Of so many parts that rows share, the largest ones, all sets are looked at."""
MOST_DEPTH = 4
"""So far are containers in a row looked through."""
MAPS = Path("/proc/self/maps")
"""What is mapped into the memory of this process, on systems that say so."""
HAS_MAPS = os.access(MAPS, os.R_OK)
NO_FILES = ("/dev/", "/anon_hugepage")
"""Beginnings of paths there that are not files; shared memory is one."""
Numbers = np.ndarray[Any, np.dtype[np.uint64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Place = tuple[int, int, int]
"""Start, extent and size of one part of one row, as in ``Places``."""
Holder = tuple[int, int]
"""Start and extent of what has no memory of its own."""
Files = tuple[Numbers, Numbers, Numbers]
"""What ``_mapped_files`` says."""
ABSENT: Place = (0, 0, 0)


@dataclass(frozen=True, eq=False)
class Places:
    """Where one part of n rows is, each (n,): rows with an equal start and extent are one.

    start: the lowest address; of what has none, the id of an object.
    extent: bytes from there to the highest address; of an object -1 - the row's number in it.
    size: bytes of the part; 0 where a row has no such part.
    """

    start: Numbers
    extent: Integers
    size: Integers

    def pick(self, rows: Integers) -> "Places":
        """These rows, in this order."""
        return Places(self.start[rows], self.extent[rows], self.size[rows])

    @staticmethod
    def of(places: Sequence[Place]) -> "Places":
        """A place for each row."""
        start, extent, size = np.array(places, dtype=np.int64).reshape(-1, 3).T
        return Places(start.astype(np.uint64), extent, size)


Name = tuple[Hashable, ...]
"""The way to a part: keys of dicts and numbers in lists; () for inputs that are one thing."""
RowParts = dict[Name, Places]
"""The parts of the inputs of rows, such as the fields of a dict."""


def under(name: Hashable, parts: RowParts) -> RowParts:
    """Parts of what has a name in a row."""
    return {(name, *inner): part for inner, part in parts.items()}


def joined(several: Sequence[RowParts], sizes: Sequence[int]) -> RowParts:
    """The rows of several, one after the other; parts of one name are one, and so are those of
    rows of one part each. sizes: how many each has.
    """
    if all(len(parts) == 1 for parts in several):
        several = [{(): part} for parts in several for part in parts.values()]
    absent = [Places.of([ABSENT] * size) for size in sizes]
    held = {
        name: [parts.get(name, none) for parts, none in zip(several, absent, strict=True)]
        for name in chain.from_iterable(several)
    }
    return {
        name: Places(
            np.concatenate([one.start for one in part]),
            np.concatenate([one.extent for one in part]),
            np.concatenate([one.size for one in part]),
        )
        for name, part in held.items()
    }


def of_object(thing: Any, rows: Integers, size: int = OBJECT_BYTES) -> RowParts:
    """Rows that are known by the object that has them and their numbers."""
    start = np.full(len(rows), id(thing), dtype=np.uint64)
    return {(): Places(start, -1 - rows, np.full(len(rows), size))}


def of_array(array: Tensor | np.ndarray, rows: Integers) -> RowParts:
    """Rows of a tensor or an array, along its first dimension.

    Those without an address, such as sparse ones and those of no bytes, are known by the object.
    """
    layout = _layout(array)
    if layout is None:
        return of_object(array, rows, _unplaced_bytes(array))
    address, shape, strides, width = layout
    low, extent, size = _span(shape[1:], strides[1:], width)
    start = np.uint64(address) + (rows * strides[0] + low).astype(np.uint64)
    return {(): Places(start, np.full(len(rows), extent), np.full(len(rows), size))}


def of_object_array(array: np.ndarray, rows: Integers) -> RowParts:
    """Rows of an array of things (N,). What has no memory of its own is known by its slot."""
    (slots,) = of_array(array, rows).values()
    things = [array[row] for row in rows.tolist()]
    holders = zip(slots.start.tolist(), slots.extent.tolist(), strict=True)
    return _of_each(things, map(_holder_in, things, holders))


def of_list(things: Any, rows: Integers) -> RowParts:
    """Rows of a list, or of what has numbers as one. A thing in it that has no memory of its own,
    such as a text, is known by its place there; within an example (inputs, target), by the example.
    """
    examples = [things[row] for row in rows.tolist()]
    inputs = [inputs_of(example) for example in examples]
    kept = [  # the inputs of a dict with its target are a dict that was made now
        example if isinstance(example, Mapping) else its_inputs
        for example, its_inputs in zip(examples, inputs, strict=True)
    ]
    holders = [
        (id(things), -1 - row) if isinstance(example, ATOMS) else (id(example), -1)
        for row, example in zip(rows.tolist(), examples, strict=True)
    ]
    return _of_each(inputs, map(_holder_in, kept, holders))


def of_things(things: Sequence[Any], rows: Integers) -> RowParts:
    """Rows of a list of inputs. What has no memory of its own is known by its place in the list."""
    chosen = [things[row] for row in rows.tolist()]
    holders = [(id(things), -1 - row) for row in rows.tolist()]
    return _of_each(chosen, map(_holder_in, chosen, holders))


def _of_each(things: Sequence[Any], holders: Iterable[Holder]) -> RowParts:
    """holders: start and extent of what has no memory of its own in each thing."""
    places = [
        _places_in(thing, holder, MOST_DEPTH) for thing, holder in zip(things, holders, strict=True)
    ]
    names = dict.fromkeys(chain.from_iterable(places))
    if len(names) > MOST_MEMBERS * max(map(len, places), default=0):  # names of single rows
        places = [{(number,): row[name] for number, name in enumerate(row)} for row in places]
        names = dict.fromkeys(chain.from_iterable(places))
    return {name: Places.of([row.get(name, ABSENT) for row in places]) for name in names}


def _places_in(thing: Any, holder: Holder, depth: int) -> dict[Name, Place]:
    """The place of each part of one row."""
    if isinstance(thing, ARRAYS):
        return {(): _place_of(thing)}
    if isinstance(thing, ATOMS):
        size = max(len(thing), 1) if isinstance(thing, str | bytes) else NUMBER_BYTES
        return {(): (*holder, size)}
    if depth and (members := _members(thing)):
        return {
            (name, *inner): place
            for name, member in members.items()
            for inner, place in _places_in(member, _holder_in(member, holder), depth - 1).items()
        }
    size = NUMBER_BYTES * len(thing) if isinstance(thing, list | tuple) else OBJECT_BYTES
    return {(): (*holder, max(size, 1))}


def _holder_in(thing: Any, holder: Holder) -> Holder:
    """What is known by its place in a thing: the thing, or its own holder if it is a value."""
    return holder if isinstance(thing, ATOMS) or _is_value(thing) else (id(thing), -1)


def _is_value(thing: Any) -> bool:
    """Whether a thing is equal to others of its value, as a date is: one object may be several
    people's.
    """
    its_hash: Any = type(thing).__hash__
    return its_hash is not None and its_hash is not object.__hash__


def _place_of(array: Tensor | np.ndarray) -> Place:
    """The place of a whole tensor or array."""
    if type(array) is Tensor and array.layout is torch.strided and array.is_contiguous():
        if address := array.data_ptr():  # most rows
            return address, array.nbytes, array.nbytes
    elif isinstance(array, np.ndarray) and array.flags.c_contiguous and array.size:
        return _address(array), array.nbytes, array.nbytes
    layout = _layout(array)
    if layout is None:
        return id(array), -1, _unplaced_bytes(array)
    address, shape, strides, width = layout
    low, extent, size = _span(shape, strides, width)
    return address + low, extent, size


def _members(thing: Any) -> Mapping[Hashable, Any]:
    """The parts of a container, or of an object that has arrays, by name; none of a list of numbers
    or words, which is one thing.
    """
    if isinstance(thing, Mapping):
        return thing
    if isinstance(thing, list | tuple):
        members = list(thing[:MOST_MEMBERS])
        return {} if all(isinstance(one, ATOMS) for one in members) else dict(enumerate(members))
    held = getattr(thing, "__dict__", {})
    return {name: value for name, value in held.items() if isinstance(value, ARRAYS)}


def _unplaced_bytes(array: Tensor | np.ndarray) -> int:
    numbers = array.numel() if isinstance(array, Tensor) else array.size
    return OBJECT_BYTES if numbers else 1


Layout = tuple[int, Sequence[int], Sequence[int], int]


def _layout(array: Tensor | np.ndarray) -> Layout | None:
    """Address, shape, strides in bytes, and the bytes of a number; None where there is no
    address.
    """
    if isinstance(array, np.ndarray):
        return (_address(array), array.shape, array.strides, array.itemsize) if array.size else None
    if array.layout is not torch.strided:
        return None
    try:
        address, width = array.data_ptr(), array.element_size()
        strides = [step * width for step in array.stride()]
    except (RuntimeError, NotImplementedError):  # nested tensors, and those of a trace
        return None
    return (address, array.shape, strides, width) if address else None


def _address(array: np.ndarray) -> int:
    """Of its first number. Where the system does not say what is mapped, that of a memmap is its
    place in the file.
    """
    address: int = array.__array_interface__["data"][0]
    if HAS_MAPS:
        return address
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return address
    file = Path(root.filename).stat()
    within: int = address - root.__array_interface__["data"][0] + root.offset
    return (hash((file.st_dev, file.st_ino)) + within) % 2**63


def _span(shape: Sequence[int], strides: Sequence[int], width: int) -> tuple[int, int, int]:
    """The lowest byte of an array, from its first number; bytes from there to the highest one; and
    bytes in all.
    """
    low, extent, size = 0, width, width
    for count, step in zip(shape, strides, strict=True):
        reach = step * (count - 1)
        low, extent, size = low + min(reach, 0), extent + abs(reach), size * count
    return low, extent, size


def earlier_rows(
    by_name: RowParts, are_equal: Callable[[int, int], bool] | None = None
) -> Integers:
    """For each row (n,) an earlier one that it repeats, or -1.

    It does so if it has that row's parts, under whatever names, or if half of its bytes or more are
    that row's. So a copy of a small part makes no other row, and rows may share a small one, as
    categories. A part that is one place in all rows, as a mask, counts only where all parts are.
    Of parts of several lengths, which who reads them refuses, nothing is said.

    are_equal: whether two rows have equal values. All rows with one part of any size in one memory
    are then one row if all of them are equal: what else they have was made anew, as a mask is.
    """
    if len({len(part.start) for part in by_name.values()}) > 1:
        return np.empty(0, dtype=np.int64)
    files = _mapped_files()
    all_parts = [(part, _numbers(part, files)) for part in by_name.values()]
    parts = [one for one in all_parts if (one[1] != one[1][:1]).any()] or all_parts
    numbers = [number for _, number in parts]
    sizes = [part.size for part, _ in parts]
    repeated = np.full(len(numbers[0]) if numbers else 0, -1)
    if len(parts) > 1:  # a sum: in any order
        places = [
            np.where(part.size, mixed(_starts(part, files), part.extent), np.uint64(0))
            for part, _ in parts
        ]
        first = _first_rows(np.sum(places, axis=0, dtype=np.uint64))
        if first is not None:
            repeated = np.where(first < np.arange(len(first)), first, -1)
    whole = np.sum(sizes, axis=0)
    order = np.arange(len(repeated))
    firsts = enumerate(map(_first_rows, numbers))
    shared = [
        place
        for place, first in firsts
        if first is not None and ((first < order) & (repeated < 0)).any()
    ]
    for chosen in _sets(sorted(shared, key=lambda place: -int(sizes[place].sum()))):
        first = _first_rows(reduce(mixed, [numbers[place] for place in chosen]))
        if first is None:
            continue
        rows = np.flatnonzero((first < order) & (repeated < 0))
        same = [number[rows] == number[first[rows]] for number in numbers]
        common = np.sum([size[rows] * one for size, one in zip(sizes, same, strict=True)], axis=0)
        rows = rows[2 * common >= whole[rows]]
        repeated[rows] = first[rows]
    if are_equal is None:
        return repeated
    for place in shared:
        first = _first_rows(numbers[place])
        assert first is not None
        rows = np.flatnonzero((first < order) & (repeated < 0))
        rows = _of_equal_groups(rows, first, are_equal)
        repeated[rows] = first[rows]
    return repeated


def _of_equal_groups(
    rows: Integers, first: Integers, are_equal: Callable[[int, int], bool]
) -> Integers:
    """Those of the rows whose first row is equal to all rows that have the same first one."""
    several: set[int] = set()
    for one, other in zip(first[rows].tolist(), rows.tolist(), strict=True):
        if one not in several and not are_equal(one, other):
            several.add(one)
    return rows[~np.isin(first[rows], [*several])]


def common_parts(parts: RowParts, one: int, other: int) -> list[str]:
    """The names of the parts that two rows share and not all rows do; none if they share all."""
    files = _mapped_files()
    numbers = {name: _numbers(part, files) for name, part in parts.items() if part.size[other]}
    own = [name for name, number in numbers.items() if number[one] != number[other]]
    return [
        ".".join(map(str, name))
        for name, number in numbers.items()
        if own and name not in own and (number != number[0]).any()
    ]


def _sets(parts: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """The sets of parts that a row may share with an earlier one: of many parts, all sets of the
    first ones, each part, and all.
    """
    few = parts[:MOST_SHARED]
    some = (combinations(few, size) for size in range(2, len(few) + 1))
    return chain(combinations(parts, 1), *some, [tuple(parts)] if parts[MOST_SHARED:] else [])


def _first_rows(numbers: Numbers) -> Integers | None:
    """For each row the first one with its number; None where all differ."""
    if (numbers[1:] > numbers[:-1]).all():
        return None
    _, first, back = np.unique(numbers, return_index=True, return_inverse=True)
    return None if len(first) == len(numbers) else first[back]


def _numbers(part: Places, files: Files) -> Numbers:
    """A number for each place: equal for equal ones of this part, and else different (to 2^-64)."""
    alike = (part.extent == part.extent[:1]).all()
    return _starts(part, files) if alike else mixed(_starts(part, files), part.extent)


def _starts(part: Places, files: Files) -> Numbers:
    """The start of each place; in its file, where one is mapped."""
    begins, ends, shifts = files
    region = np.searchsorted(begins, part.start, side="right") - 1
    starts: Numbers = part.start + np.where(part.start < ends[region], shifts[region], np.uint64(0))
    return starts


def _mapped_files() -> Files:
    """Memory that is mapped from files: where each region begins and ends, in order, and what makes
    of an address there the number of its place in the file.
    """
    regions = [(0, 0, 0)]
    for line in MAPS.read_text(errors="replace").splitlines() if HAS_MAPS else ():
        addresses, _, offset, device, node, *path = line.split(maxsplit=5)
        if node == "0" or not _is_file("".join(path)):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        regions.append((begin, end, (hash((device, node)) + int(offset, 16) - begin) % 2**64))
    begins, ends, shifts = np.array(regions, dtype=np.uint64).T
    return begins, ends, shifts


def _is_file(path: str) -> bool:
    return path.startswith("/") and (not path.startswith(NO_FILES) or path.startswith("/dev/shm/"))


def mixed(one: Any, other: Any) -> Numbers:
    """One number of two, as SplitMix64 mixes its state."""
    numbers: Numbers = np.asarray(one).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = numbers + np.uint64(1)
    for number in (np.asarray(other).astype(np.uint64), np.uint64(0)):
        numbers = numbers + number
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers = numbers ^ (numbers >> np.uint64(31))
    return numbers
