"""glue-sst2, glue-qnli, glue-qqp, glue-mnli: four tasks of GLUE (Wang et al. 2019), from the hub or a local mirror.

The labels of GLUE's test splits are hidden, so accuracy is reported on the validation splits, as the papers do; MNLI
has a matched and a mismatched one, whose accuracies are averaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulations.workloads.base.mirror import find_shards
from simulations.workloads.base.workload import LoadedWorkload, Request, refuse_unused
from simulations.workloads.rows.hub import of_shards
from simulations.workloads.rows.texts import Columns
from simulations.workloads.texts.text_workload import USED, text_workload

HUB_NAME = "nyu-mll/glue"

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
        "microbatch_size": 32,
    }
)

FINE_TUNING: Mapping[str, object] = MappingProxyType({"learning_rate": 1e-4, "classifier_learning_rate": 1e-3})

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "rs": {"sparsity": 0.5},
        "probe": {"rank": 128, "sparsity": 0.0},
        "topk": FINE_TUNING,
        "powersgd": FINE_TUNING,
        "bitfit": {"learning_rate": 5e-3},
    }
)
"""Without noise, the usual rates of fine-tuning; biases alone take a larger one. They were not tuned here."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of GLUE: its text columns, number of classes, test splits, and the delta of the papers."""

    subset: str
    inputs: tuple[str, ...]
    num_classes: int = 2
    tests: tuple[str, ...] = ("validation",)
    delta: float = 1e-5

    @property
    def name(self) -> str:
        return f"glue-{self.subset}"

    @property
    def defaults(self) -> Mapping[str, object]:
        return MappingProxyType({**DEFAULTS, "delta": self.delta})

    @property
    def method_defaults(self) -> Mapping[str, Mapping[str, object]]:
        return METHOD_DEFAULTS

    @property
    def summary(self) -> str:
        return f"GLUE's {self.subset}: {' and '.join(self.inputs)}, {self.num_classes} classes."

    def load(self, request: Request) -> LoadedWorkload:
        """Load the task; inputs are padded tokens of the model. The first load tokenises and takes some seconds.

        ``options.test_split`` replaces the test splits by one.
        Raises:
            FileNotFoundError, ModuleNotFoundError, ConnectionError: no data (``find_shards``) or no model.
            ValueError: damaged data, other columns, a label out of range (-1: hidden), an option out of range.
        """
        refuse_unused(request.options, workload=self.name, used=USED)
        tests = self.tests if request.options.test_split is None else (request.options.test_split,)
        splits = tests if request.public_only else ("train", *tests)
        columns = Columns(inputs=self.inputs, label="label")
        shards = find_shards("glue", self.subset, splits, hub_name=HUB_NAME, data_dir=request.data_dir)
        return text_workload(
            self.name,
            of_shards(shards),
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
"""By the name of the workload."""
