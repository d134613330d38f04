"""Sets of texts: four tasks of GLUE (Wang et al. 2019), and any set of the hub.

The labels of GLUE's test splits are hidden, so accuracy is reported on the validation splits, as
the papers do; MNLI has a matched and a mismatched one, whose accuracies are averaged.

hf-text: ``-c dataset=OWNER/NAME`` names a set; ``subset``, ``input_columns`` (one, or two for
pairs: ``premise,hypothesis``), ``label_column`` and ``test_split`` choose the rest. All are read
from a local mirror (see ``find_folder``), or without one from the hub.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fedlsg.simulations.workloads.base import LoadedWorkload, Options, Request, refuse_unused
from fedlsg.simulations.workloads.rows import describe_data
from fedlsg.simulations.workloads.rows.decode import TextColumns, check_text_columns
from fedlsg.simulations.workloads.rows.hub import find_set
from fedlsg.simulations.workloads.rows.table_files import published_of
from fedlsg.simulations.workloads.text_workload import USED, text_workload

HUB_NAME = "nyu-mll/glue"
"""GLUE's name on the hub; its tasks are subsets."""

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 5,
        "rounds": 60,
        "local_steps": 1,
        "sample_rate": 0.05,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "classifier_learning_rate": 0.05,
        "clip_norm": 1.0,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 8,
        "sparsity": 0.3,
        "partition": "iid",
    }
)
"""The preset of all sets of texts."""

FINE_TUNING: Mapping[str, object] = MappingProxyType(
    {"learning_rate": 1e-4, "classifier_learning_rate": 1e-3}
)
"""The usual rates of fine-tuning, for methods without noise."""

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rs": {"sparsity": 0.5},
        "probe": {"rank": 128, "sparsity": 0.0},
        "topk": FINE_TUNING,
        "powersgd": FINE_TUNING,
        "bitfit": {"learning_rate": 5e-3},
    }
)
"""Settings of single methods. Biases alone take a larger rate. None of them was tuned here."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of GLUE.

    subset: its name on the hub.
    inputs: the text columns.
    num_classes: the number of classes.
    tests: the splits on which accuracy is reported.
    delta: that of the papers.
    """

    subset: str
    inputs: tuple[str, ...]
    num_classes: int = 2
    tests: tuple[str, ...] = ("validation",)
    delta: float = 1e-5

    @property
    def name(self) -> str:
        """The name of the workload."""
        return f"glue-{self.subset}"

    @property
    def defaults(self) -> Mapping[str, object]:
        """The preset of the task."""
        return MappingProxyType({**DEFAULTS, "delta": self.delta})

    @property
    def method_defaults(self) -> Mapping[str, Mapping[str, object]]:
        """Settings of single methods."""
        return METHOD_DEFAULTS

    @property
    def summary(self) -> str:
        """One line for a list."""
        return f"GLUE's {self.subset}: {' and '.join(self.inputs)}, {self.num_classes} classes."

    def load(self, request: Request) -> LoadedWorkload:
        """Load the task; inputs are padded tokens of the model. The first load tokenises and takes
        some seconds.

        ``options.test_split`` replaces the test splits by one.
        Raises: FileNotFoundError, ModuleNotFoundError, ConnectionError: no data (``find_set``) or
            no model. ValueError: damaged data, other columns, a label out of range (-1: hidden), an
            option out of range.
        """
        refuse_unused(request.options, workload=self.name, used=USED)
        tests = self.tests if request.options.test_split is None else (request.options.test_split,)
        splits = tests if request.public_only else ("train", *tests)
        columns = TextColumns(inputs=self.inputs, label="label")
        place = Options(dataset=HUB_NAME, subset=self.subset)
        source = find_set(
            place, request.data_dir, {split: split for split in splits}, published=True
        )
        return text_workload(
            self.name,
            source,
            request,
            tests=tests,
            columns=columns,
            num_classes=self.num_classes,
            defaults=self.defaults,
            method_defaults=self.method_defaults,
        )


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            Task(subset="sst2", inputs=("sentence",)),
            Task(subset="qnli", inputs=("question", "sentence")),
            Task(subset="qqp", inputs=("question1", "question2"), delta=1e-6),
            Task(
                subset="mnli",
                inputs=("premise", "hypothesis"),
                num_classes=3,
                tests=("validation_matched", "validation_mismatched"),
                delta=1e-6,
            ),
        )
    }
)
"""The tasks by the name of their workload."""


LABEL_COLUMN = "label"
"""The label column, if none is named."""
STRINGS = ("string", "large_string")
"""Types of pyarrow that hold texts."""


class HubTexts:
    """Any set of the hub, with the preset of GLUE's tasks."""

    summary = "Any text-classification set of the Hugging Face hub, by its name and its columns."
    defaults, method_defaults = DEFAULTS, METHOD_DEFAULTS

    def load(self, request: Request) -> LoadedWorkload:
        """Load the workload; inputs are padded tokens of the model. The first load tokenises.

        The label column publishes the number of classes; else the public test split gives it. A
        progress line reports which. It is never counted in the training labels, which are private.
        Raises:
            ValueError: no dataset, unknown columns or splits (with those there are), damaged data,
                a label out of its range.
            FileNotFoundError, ModuleNotFoundError, ConnectionError: no data or no model.
        """
        options = request.options
        refuse_unused(
            options,
            workload="hf-text",
            used=(*USED, "dataset", "subset", "input_columns", "label_column"),
        )
        if options.dataset is None:
            raise ValueError("workload hf-text needs a data set of the hub: -c dataset=OWNER/NAME")
        test_split = options.test_split or "test"
        splits = (test_split,) if request.public_only else ("train", test_split)
        source = find_set(options, request.data_dir, {split: split for split in splits})
        schema = source.first_part.schema
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
        return replace(loaded, data=data, said=describe_data(source.sizes, data))


def choose_columns(
    there: Sequence[str], texts: Sequence[str], options: Options, *, place: str
) -> TextColumns:
    """The columns that the options name; by default the one or two text columns, and ``label``.

    there: names of all columns.
    texts: names of the text columns.
    Raises ValueError, listing the columns, if the options name none and there are not one or two
    text columns.
    """
    if options.input_columns is not None:
        inputs = tuple(name.strip() for name in options.input_columns.split(","))
    else:
        inputs = tuple(name for name in texts if name != options.label_column)
        if not 1 <= len(inputs) <= 2:
            raise ValueError(
                f"choose input_columns among the {len(inputs)} text columns of {place}, which has "
                f"{', '.join(there)}"
            )
    columns = TextColumns(inputs=inputs, label=options.label_column or LABEL_COLUMN)
    check_text_columns(columns, there, place=place)
    return columns
