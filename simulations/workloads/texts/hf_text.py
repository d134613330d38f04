"""hf-text: any text-classification set of the Hugging Face hub, by its name and its columns.

``-c dataset=OWNER/NAME`` names it; ``subset``, ``input_columns`` (one, or two for pairs: ``premise,hypothesis``),
``label_column`` and ``test_split`` choose the rest. It is read from a local mirror (see ``find_folder``), or without
one through ``datasets.load_dataset``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulations.workloads.base.cache import digest_files
from simulations.workloads.base.mirror import find_folder, find_splits, load_from_hub, open_parquet
from simulations.workloads.base.workload import LoadedWorkload, Options, Request, refuse_unused
from simulations.workloads.texts.glue import DEFAULTS, METHOD_DEFAULTS
from simulations.workloads.texts.source import Columns, Source, Texts, check_columns, checked, read_parquet
from simulations.workloads.texts.text_workload import USED, text_workload

LABEL_COLUMN = "label"
STRINGS = ("string", "large_string")


def load(request: Request) -> LoadedWorkload:
    """Load the workload; inputs are padded tokens of the model. The first load tokenises.

    The label column publishes the number of classes; else the public test split gives it. A progress line reports
    which. It is never counted in the training labels, which are private.
    Raises:
        ValueError: no dataset, unknown columns or splits (with those there are), damaged data, a label out of range.
        FileNotFoundError, ModuleNotFoundError, ConnectionError: no data or no model.
    """
    options = request.options
    refuse_unused(options, workload="hf-text", used=(*USED, "dataset", "subset", "input_columns", "label_column"))
    if options.dataset is None:
        raise ValueError("workload hf-text needs a data set of the hub: -c dataset=OWNER/NAME")
    test_split = options.test_split or "test"
    splits = (test_split,) if request.public_only else ("train", test_split)
    folder = find_folder(options.dataset, options.subset, data_dir=request.data_dir)
    columns, source = _on_hub(options, splits) if folder is None else _in_mirror(folder, options, splits)
    return text_workload(
        "hf-text",
        source,
        request,
        tests=(test_split,),
        columns=columns,
        num_classes=None,
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
    )


def choose_columns(there: Sequence[str], texts: Sequence[str], options: Options, *, place: str) -> Columns:
    """The columns that the options name; else the one or two text columns, and ``label``.

    there: all columns; texts: those of strings. Raises ValueError, listing the columns, for more than two or none.
    """
    if options.input_columns is not None:
        inputs = tuple(name.strip() for name in options.input_columns.split(","))
    else:
        inputs = tuple(name for name in texts if name != options.label_column)
        if not 1 <= len(inputs) <= 2:
            raise ValueError(
                f"choose input_columns among the {len(inputs)} text columns of {place}, which has {', '.join(there)}"
            )
    columns = Columns(inputs=inputs, label=options.label_column or LABEL_COLUMN)
    check_columns(columns, there, place=place)
    return columns


def _in_mirror(folder: Path, options: Options, splits: tuple[str, ...]) -> tuple[Columns, Source]:
    shards = find_splits(folder, splits)
    schema = open_parquet(next(iter(shards.values()))[0]).schema_arrow
    texts = [field.name for field in schema if str(field.type) in STRINGS]
    columns = choose_columns(schema.names, texts, options, place=str(folder))
    digest = digest_files([file for files in shards.values() for file in files], salt="")
    return columns, Source(digest=digest, read=lambda split: read_parquet(shards[split], columns))


def _on_hub(options: Options, splits: tuple[str, ...]) -> tuple[Columns, Source]:
    assert options.dataset is not None
    loaded = load_from_hub(options.dataset, options.subset, splits)
    features = loaded[splits[0]].features
    texts = [name for name, feature in features.items() if getattr(feature, "dtype", None) in STRINGS]
    columns = choose_columns(list(features), texts, options, place=options.dataset)
    read = {split: _read(loaded[split], columns, place=f"{options.dataset}, {split}") for split in splits}
    return columns, Source(digest=digest_texts(read), read=lambda split: read[split])


def _read(split: Any, columns: Columns, *, place: str) -> Texts:
    """One split of the ``datasets`` library."""
    check_columns(columns, split.column_names, place=place)
    names = getattr(split.features[columns.label], "names", None)
    values = {name: list(split[name]) for name in columns.names}
    return checked(values, columns, tuple(names) if names else None, place=place)


def digest_texts(splits: Mapping[str, Texts]) -> str:
    """32 hex digits that depend on every text and label, and on which split holds them."""
    digest = hashlib.sha256()
    for split, texts in splits.items():
        digest.update(repr((split, len(texts), texts.class_names)).encode() + texts.labels.tobytes())
        for column in (texts.first, texts.second or []):
            for text in column:
                digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()[:32]
