"""One table, whatever library stores it, as batches of some of its columns: a ``Part``.

A part is a parquet file, or a split of the ``datasets`` library. Rows are read when they are
needed, ``ROWS_AT_ONCE`` at a time, so that a set may be larger than the memory.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg.simulations.workloads.rows.table_files import features_of

ROWS_AT_ONCE = 1000
"""The most rows of a batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A split, or one file of it.

    place: where it is, for error messages.
    size: its number of rows.
    schema: of pyarrow, with the description that the ``datasets`` library may have left in it.
    batches: gets names of columns, and gives batches of rows in order, as a list of values for each
        column.
    """

    place: str
    size: int
    schema: Any
    batches: Callable[[Sequence[str]], Iterator[Mapping[str, list[Any]]]]

    @property
    def features(self) -> dict[str, Any]:
        """Each column as ``datasets`` describes it; without a description by its type."""
        described = features_of(self.schema)
        return {
            field.name: described.get(field.name, _feature_of_type(field.type))
            for field in self.schema
        }


def _feature_of_type(kind: Any) -> dict[str, Any]:
    """The description that ``datasets`` would give a column of this type of pyarrow."""
    return {"_type": "Image"} if is_image(kind) else {"_type": "Value", "dtype": str(kind)}


def is_image(kind: Any) -> bool:
    """Whether a type of pyarrow holds encoded images as the hub stores them: a struct with
    ``bytes``.
    """
    import pyarrow as pa

    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def part_of_file(path: Path) -> Part:
    """A parquet file. Raises ValueError, here or in ``batches``, if it cannot be read."""
    from pyarrow import parquet

    with _explain_errors(path):
        file = parquet.ParquetFile(path)

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        with _explain_errors(path):
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(names)):
                yield batch.to_pydict()

    return Part(
        place=str(path), size=file.metadata.num_rows, schema=file.schema_arrow, batches=batches
    )


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Inside, errors of reading a file become a ValueError that names it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; download it again") from error


def part_of_library(split: Any, place: str) -> Part:
    """A split of the ``datasets`` library."""

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        for batch in split.select_columns(list(names)).with_format("arrow").iter(ROWS_AT_ONCE):
            yield batch.to_pydict()

    return Part(place=place, size=len(split), schema=split.features.arrow_schema, batches=batches)


def content_of(image: Mapping[str, Any] | None) -> bytes | None:
    """The bytes of an encoded image.

    They are in the row, or in the file that the row names. None for a missing image, and for a file
    that is not there.
    """
    if image is None:
        return None
    content: bytes | None = image["bytes"]
    if content is not None or not image.get("path"):
        return content
    file = Path(image["path"])
    return file.read_bytes() if file.is_file() else None


def digest_of_parts(splits: Mapping[str, Sequence[Part]], columns: Sequence[str]) -> str:
    """32 hex digits that depend on every value of these columns, and on the split that holds it.

    Of an image its bytes count, not its path.
    """
    digest = hashlib.sha256(repr(list(columns)).encode())
    for name, parts in splits.items():
        for part in parts:
            digest.update(f"\n{name} {part.size} {part.features}\n".encode())
            for batch in part.batches(columns):
                for column in columns:
                    for value in batch[column]:
                        digest.update(hashlib.sha256(_bytes_of(value)).digest())
    return digest.hexdigest()[:32]


def _bytes_of(value: Any) -> bytes:
    """A value of a row as bytes."""
    content = content_of(value) if isinstance(value, Mapping) else value
    if isinstance(content, bytes):
        return content
    # texts of the hub may have halves of surrogate pairs, which UTF-8 alone refuses
    return repr(content).encode("utf-8", "surrogatepass")
