"""Presets: rows of papers' tables as settings, with their names and what all of them share.

Rows are in ``tables/*.toml``, a file for each paper: groups of rows with common settings and notes,
and for each row the cells of its ``columns``. A cell "" means that the paper prints no value. Notes
are named by their keys.

The papers train on one machine: one client that takes one step a round. With N examples, batch B
and E epochs that is ``sample_rate`` = B / N and ``rounds`` = round(E N / B). Every setting of the
server is written out, so that no default of a workload changes a paper's row.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

Value = str | int | float | bool

EXAMPLES: Mapping[str, int] = MappingProxyType(
    {
        "cifar10": 50_000,
        "cifar100": 50_000,
        "svhn": 73_257,
        "svhn-extra": 604_388,
        "fashion-mnist": 60_000,
        "imagenet": 1_281_167,
        "glue-sst2": 67_349,
        "glue-qnli": 104_743,
        "glue-qqp": 363_846,
        "glue-mnli": 392_702,
    }
)
"""Training examples N of each workload, as the Hugging Face data sets hold them."""

UNSAID_MODELS = frozenset({"wrn-28-4", "roberta-base", "resnet-50"})
"""Models that a preset's name leaves out: most rows have one of them."""

GROUP_RATES = ("norms_learning_rate", "classifier_learning_rate")
"""Learning rates of parameter groups."""

FACTS = frozenset({"where", "accuracy", "spread", "aliases", "suffix", "notes"})
"""Columns that are not settings."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A named row.

    name, aliases: under which ``--preset`` finds it.
    settings: by setting name, ready for ``fedlsg.simulations.settings.settings``; read-only.
    paper, where: the paper, and its table or figure.
    accuracy, spread: percent on the test split and its standard deviation, as printed; None if the
        paper has none.
    notes: what the paper leaves open or gets wrong, and our choice.
    """

    name: str
    aliases: tuple[str, ...] = ()
    settings: Mapping[str, Value]
    paper: str
    where: str
    accuracy: float | None = None
    spread: float | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def examples(self) -> int:
        """N of the workload."""
        return EXAMPLES[str(self.settings["workload"])]

    @property
    def batch(self) -> int:
        """Expected batch B; of shuffled batches, the batch."""
        if "batch_size" in self.settings:
            return int(self.settings["batch_size"])
        return round(float(self.settings["sample_rate"]) * self.examples)

    @property
    def epochs(self) -> float:
        """Expected passes over the data."""
        if "batch_size" in self.settings:
            return int(self.settings["rounds"]) / -(-self.examples // self.batch)
        return float(self.settings["sample_rate"]) * int(self.settings["rounds"])

    @property
    def source(self) -> str:
        """Paper and place in it."""
        return f"{self.paper}, {self.where}"


def rows_of(path: Path) -> Iterator[Published]:
    """The presets of a paper's file. Raises ValueError for a cell too many or too few, KeyError for
    an unknown note.
    """
    table = tomllib.loads(path.read_text("utf-8"))
    for group in table["group"]:
        columns = group.get("columns", [])
        for row in group.get("rows", [[]]):
            cells = dict(zip(columns, row, strict=True))
            settings_of_row = {name: cell for name, cell in cells.items() if name not in FACTS}
            facts = group | {
                name: cell for name, cell in cells.items() if name in FACTS and cell != ""
            }
            settings = completed(group["settings"] | settings_of_row)
            notes = [*cells.get("notes", ()), *group["notes"]]
            yield Published(
                name=name_of(settings) + facts.get("suffix", ""),
                aliases=tuple(facts.get("aliases", ())),
                settings=settings,
                paper=table["paper"],
                where=facts["where"],
                accuracy=facts.get("accuracy"),
                spread=facts.get("spread"),
                notes=tuple(table["notes"][note] for note in dict.fromkeys(notes)),
            )


def completed(row: Mapping[str, Value]) -> dict[str, Value]:
    """Settings of a centralised run from a row, which has ``batch``, and ``epochs`` or ``rounds``.

    A row overrides the settings that all presets share. A row without epsilon is a run without
    noise.
    """
    given = dict(row)
    workload, method, batch = str(given["workload"]), given["method"], int(given.pop("batch"))
    n = EXAMPLES[workload]
    shared: dict[str, Value] = {
        "workload": workload,
        "method": method,
        "clients": 1,
        "clients_per_round": 1,
        "local_steps": 1,
        "rounds": round(float(given.pop("epochs", 0)) * n / batch),
        "sample_rate": batch / n,
        "evaluate_every": max(1, round(n / batch)),  # once an epoch
        "partition": "iid",
        "augment": "none",
        "multiplicity": 1,
        "estimator": "eq3",
        "schedule": "constant",
        "weight_decay": 0.0,
        "ema": 0.0,
    }
    if given.get("sampling") == "shuffle":
        del shared["sample_rate"]
        shared["batch_size"] = batch
    if "epsilon" in given:
        shared["clip"] = "joint"
    elif method != "sgd":
        shared["mechanism"] = "none"
    merged = {**shared, **given}
    # no paper prints more than one rate (the code of RGP scales the classifier's gradient instead)
    return {**dict.fromkeys(GROUP_RATES, merged["learning_rate"]), **merged}


def name_of(settings: Mapping[str, Value]) -> str:
    """``method-workload[-model]-eps3.3[-r4][-p0.5]``, without a model of ``UNSAID_MODELS``."""
    parts = [str(settings["method"]), str(settings["workload"]).removeprefix("glue-")]
    if settings["model"] not in UNSAID_MODELS:
        parts.append(
            model_of(settings).removesuffix("-base").removesuffix("-ws").removesuffix("-gain")
        )
    parts.append(f"eps{settings['epsilon']:g}" if "epsilon" in settings else "nonprivate")
    parts += [
        f"{mark}{settings[key]:g}"
        for mark, key in (("r", "rank"), ("p", "sparsity"))
        if key in settings
    ]
    return "-".join(parts)


def model_of(settings: Mapping[str, Value]) -> str:
    """The model; ``h-cnn`` for a CNN on scattering features, as Zhu and Blaschko 2023 call it."""
    if (settings.get("features"), settings["model"]) == ("scattering", "cnn"):
        return "h-cnn"
    return str(settings["model"])
