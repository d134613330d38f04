"""Sets of the Hugging Face hub as columns, some rows at a time: shards of a mirror, or the ``datasets`` library.

Both hold tables of arrow, with the library's description of the columns in their schema.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simulations.workloads.base.cache import digest_files
from simulations.workloads.base.mirror import find_folder, find_splits, load_from_hub, open_parquet
from simulations.workloads.base.workload import Options
from simulations.workloads.rows.files import features_of

ROWS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A split, or one file of it. ``batches(names)`` gives these columns by name, in order, as lists."""

    place: str
    size: int
    schema: Any
    batches: Callable[[Sequence[str]], Iterator[Mapping[str, list[Any]]]]

    @property
    def features(self) -> dict[str, Any]:
        """Each column as the ``datasets`` library declares it; without a declaration by its arrow type."""
        declared = features_of(self.schema)
        plain = {
            field.name: {"_type": "Image"} if is_image(field.type) else {"_type": "Value", "dtype": str(field.type)}
            for field in self.schema
        }
        return {name: declared.get(name, feature) for name, feature in plain.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class HubSet:
    """The parts of each split, by our own names of the splits; ``digest(columns)`` depends on their whole content."""

    splits: Mapping[str, Sequence[Part]]
    place: str
    digest: Callable[[Sequence[str]], str]

    @property
    def first(self) -> Part:
        return next(iter(self.splits.values()))[0]


def find_set(options: Options, data_dir: Path | None, splits: Mapping[str, str]) -> HubSet:
    """The set that ``options`` name, from a mirror, or through ``datasets`` without one.

    ``splits``: the set's own names of the splits, by ours. Raises what ``find_folder`` and ``load_from_hub`` raise.
    """
    assert options.dataset is not None
    folder = find_folder(options.dataset, options.subset, data_dir=data_dir)
    if folder is not None:
        found = find_splits(folder, tuple(splits.values()))
        return of_shards({name: found[split] for name, split in splits.items()}, str(folder))
    loaded = load_from_hub(options.dataset, options.subset, tuple(splits.values()))
    parts = {name: [_of_library(loaded[split], f"{options.dataset}, {name} split")] for name, split in splits.items()}
    return HubSet(splits=parts, place=options.dataset, digest=partial(_digest, parts))


def of_shards(shards: Mapping[str, Sequence[Path]], place: str = "") -> HubSet:
    """Splits of parquet files. Raises ValueError for one that cannot be read."""
    files = [file for paths in shards.values() for file in paths]
    return HubSet(
        splits={split: [shard(path) for path in paths] for split, paths in shards.items()},
        place=place or str(files[0]),
        digest=lambda columns: digest_files(files, salt=""),
    )


def shard(path: Path) -> Part:
    """A parquet file. Raises ValueError if it is none."""
    file = open_parquet(path)

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        import pyarrow as pa

        try:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(names)):
                yield batch.to_pydict()
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"cannot read {path}: {error}; download it again") from error

    return Part(place=str(path), size=file.metadata.num_rows, schema=file.schema_arrow, batches=batches)


def is_image(kind: Any) -> bool:
    """Whether an arrow type holds encoded images as the hub stores them: a struct with ``bytes``."""
    import pyarrow as pa

    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _of_library(split: Any, place: str) -> Part:
    """A split of the ``datasets`` library."""

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        for batch in split.select_columns(list(names)).with_format("arrow").iter(ROWS_AT_ONCE):
            yield batch.to_pydict()

    return Part(place=place, size=len(split), schema=split.features.arrow_schema, batches=batches)


def _digest(parts: Mapping[str, Sequence[Part]], columns: Sequence[str]) -> str:
    """32 hex digits that depend on every value of the columns (of images the bytes), and on which split holds it."""
    digest = hashlib.sha256(repr(list(columns)).encode())
    for name, split in parts.items():
        for part in split:
            digest.update(f"\n{name} {part.size} {part.features}\n".encode())
            for batch in part.batches(columns):
                for value in (value for column in columns for value in batch[column]):
                    content = content_of(value) if isinstance(value, Mapping) else value
                    whole = content if isinstance(content, bytes) else repr(content).encode("utf-8", "surrogatepass")
                    digest.update(hashlib.sha256(whole).digest())
    return digest.hexdigest()[:32]


def content_of(image: Mapping[str, Any] | None) -> bytes | None:
    """The encoded image; of one stored by its path, the file."""
    if image is None or image["bytes"] is not None or not image.get("path"):
        return None if image is None else image["bytes"]
    file = Path(image["path"])
    return file.read_bytes() if file.is_file() else None
