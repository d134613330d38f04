"""hf-text: any text-classification set of the Hugging Face hub, by its name and its columns.

``-c dataset=OWNER/NAME`` names it; ``subset``, ``input_columns`` (one, or two for pairs: ``premise,hypothesis``),
``label_column`` and ``test_split`` choose the rest. It is read from a local mirror (see ``find_folder``), or without
one through ``datasets.load_dataset``.
"""

from collections.abc import Sequence
from dataclasses import replace

from simulations.workloads.base.workload import LoadedWorkload, Options, Request, refuse_unused
from simulations.workloads.rows.files import published_of
from simulations.workloads.rows.form import describe_data
from simulations.workloads.rows.hub import find_set
from simulations.workloads.rows.texts import Columns, check_columns
from simulations.workloads.texts.glue import DEFAULTS, METHOD_DEFAULTS
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
    source = find_set(options, request.data_dir, {split: split for split in splits})
    schema = source.first.schema
    texts = [field.name for field in schema if str(field.type) in STRINGS]
    columns = choose_columns(schema.names, texts, options, place=source.place)
    loaded = text_workload(
        "hf-text",
        source,
        request,
        tests=(test_split,),
        columns=columns,
        num_classes=None,
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
    )
    data = {
        "inputs": list(columns.inputs),
        "targets": [columns.label],
        "classes": list(published_of(schema).get(columns.label, ())),
    }
    sizes = {split: sum(part.size for part in parts) for split, parts in source.splits.items()}
    return replace(loaded, data=data, said=describe_data(sizes, data))


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
