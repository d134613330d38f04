"""The rows that trials use (``--on``), and the epsilon of choosing by held-out private rows.

This epsilon is that of the composition of all trials. Each trial trains on the same rows, and its
result decides what comes next. So each one is a release about these rows, also if it failed or was
interrupted. The accountants bound adaptive composition: later trials may follow from earlier
results. The accuracies themselves are computed from the held-out rows without noise: no epsilon
covers those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedlsg import user_code
from fedlsg.accounting import AccountingError, Event, compose, spread
from fedlsg.accounting.events import canonical, split_log_ratio
from fedlsg.config import partitions
from fedlsg.config.units import unit_named
from fedlsg.simulations import workloads
from fedlsg.simulations.compare.grid.runner import CELLS
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.results import refuse_own_noise
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.start_record import read_start
from fedlsg.simulations.workloads import Options, public_rows
from fedlsg.simulations.workloads.public_data import public_data

HOLDOUT = 0.1
"""The share of the rows that trials are compared on, unless -c holdout=... says otherwise."""

HELD_OUT, TEST = "held-out", "test"
"""Words of ``--on``; "test" is refused."""
EXPECTED = (
    "say with --on which rows the trials use: data:NAME or data:PATH (public rows that you name, "
    "costs no privacy), synthetic (public inputs with labels of a random teacher, costs no "
    "privacy), or held-out (a share of the private training rows, costs privacy)"
)
REFUSED = (
    "--on test: no setting is chosen on the test split, because its accuracies would then be too "
    "high: --on held-out, data:NAME|PATH or synthetic"
)
FREE = (
    "Choosing costs no privacy: the trials use {rows} alone. They train on one part, and are "
    "compared on the rest."
)
COSTLY = (
    "CHOOSING COSTS PRIVACY: each trial is a release about the same private rows, and accuracies "
    "of held-out rows have no noise. The cost is printed at the end."
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that trials train on and are compared on.

    words: what they are, for people.
    private: they are the private training rows.
    settings: those that each trial gets for them.
    """

    words: str
    private: bool
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> str:
        """Whether choosing on these rows costs privacy, in a sentence."""
        return COSTLY if self.private else FREE.format(rows=self.words)


def rows_of(on: str | None) -> Rows:
    """The rows that ``--on`` names. Raises ValueError for none, the test split, or another word."""
    if on == HELD_OUT:
        return Rows(
            words="held-out rows of the private training split",
            private=True,
            settings={"holdout": HOLDOUT},
        )
    if on == TEST:
        raise ValueError(REFUSED)
    kind, _, name = (on or "").partition(":")
    if on == "synthetic" or (kind == "data" and name):
        words = (
            "synthetic inputs with labels of a random teacher"
            if on == "synthetic"
            else f"public rows of {name}"
        )
        return Rows(words=words, private=False, settings={"holdout": HOLDOUT, "public_rows": on})
    raise ValueError(
        EXPECTED
        if on is None
        else f"expected --on held-out, data:NAME|PATH or synthetic, got {on!r}"
    )


def as_many_rows(settings: Settings) -> dict[str, int]:
    """The setting that makes public rows as many as the rows of the private training split.

    That number is public. Empty if the split is not on this machine. If it is, its rows are read,
    and public rows that are among them are refused.
    Raises ValueError for such rows.
    """
    data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser().resolve()
    names = {
        f.name: getattr(settings, f.name)
        for f in fields(Options)
        if f.name not in ("train_rows", "holdout")
    }
    options = Options(**names)
    name = public_rows.locate(settings.public_rows)
    try:
        private = workloads.load(settings.workload, data_dir=data_dir, options=options)
    except OSError:
        return {}
    if name is not None and name != public_rows.SYNTHETIC:
        public_data(
            name.removeprefix(user_code.DATA),
            private,
            data_dir=data_dir,
            options=options,
            setting="public_rows",
        )
    return {"train_rows": len(private.train)}


CHARGED = "charged"
"""The folder, in that of a search, of what its trials have charged."""
Partition = tuple[object, ...]
PARTITION = ("seed", "clients", "partition", *partitions.SETTINGS, "train_rows", "holdout")
"""The settings that decide which client has a row."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run charged.

    partition: the values of PARTITION; runs with equal ones have the same rows at each client.
    events: of each client, by its number.
    private: False if a step had no noise, or noise from a known seed. Then no epsilon bounds it.
    """

    partition: Partition
    events: Mapping[int, Sequence[Event]]
    private: bool = True


def epsilon_of(trials: Sequence[Trial], *, delta: float) -> float:
    """Epsilon at ``delta`` of all trials together, for each row that they trained on (add or remove
    one row).

    Guarantee: an upper bound. Trials with one partition compose client by client, and the largest
    client counts. In another partition (another seed) a row may be with another client: if all
    clients of each partition have equal events, the events of all partitions compose; else the
    epsilons at delta / partitions are added (basic composition). Infinite if a trial is not
    private, or if no accountant certifies a bound. No trials: 0.
    """
    if not all(trial.private for trial in trials):
        return math.inf
    groups: dict[Partition, dict[int, list[Event]]] = {}
    for trial in trials:
        group = groups.setdefault(trial.partition, {})
        for client, events in trial.events.items():
            group.setdefault(client, []).extend(events)
    populations = [
        [_merged(events) for events in group.values()] for group in groups.values() if group
    ]
    if all(len(set(population)) == 1 for population in populations):
        try:
            return compose(
                [event for population in populations for event in population[0]], delta=delta
            ).upper
        except AccountingError:
            return math.inf
    share = delta / len(populations)
    return math.fsum(spread(population, delta=share).largest for population in populations)


def _merged(events: Sequence[Event]) -> tuple[Event, ...]:
    """The fewest events with the same loss; the first one has the Lambda of all."""
    plain, log_ratio = split_log_ratio(events)
    merged = canonical(plain)
    return tuple(replace(event, log_ratio=log_ratio) for event in merged[:1]) + merged[1:]


def keep_charges(search: Path) -> Path:
    """Copy what the trials of a search have charged, and return the folder of all copies.

    A copy is a run directory with settings and ledgers. It stays when the trial's own folder is
    removed, and a trial that is run again has another copy: what was charged is never forgotten.
    """
    copies = search / CHARGED
    for run in _runs_in(search / CELLS):
        copy = RunDir(copies / f"{run.path.name}-{read_start(run).get('id', '')}")
        for file in (run.config, *filter(Path.is_file, run.ledgers.rglob("*"))):
            place, content = copy.path / file.relative_to(run.path), file.read_bytes()
            if not place.exists() or place.read_bytes() != content:
                write_atomically(place, content, private=True)
    return copies


def _runs_in(folder: Path) -> list[RunDir]:
    """The run directories in a folder that have ledgers, in the order of their names."""
    runs = [RunDir(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [run for run in runs if run.ledgers.is_dir()]


def read_trials(folder: Path) -> list[Trial]:
    """What each run directory in ``folder`` has charged so far, finished or not.

    Runs that charged nothing are left out.

    Raises ValueError (LedgerError) for a damaged ledger or config.
    """
    return [trial for run in _runs_in(folder) if (trial := _read(run)).events]


def _read(run: RunDir) -> Trial:
    settings, charges = run.read_values(), run.charges
    refuse_own_noise(run, settings)
    ledgers = [charges.of(client) for client in charges.clients()]
    charged = [ledger for ledger in ledgers if ledger.entries]
    if not all(unit_named(entry.unit).single for ledger in charged for entry in ledger.entries):
        raise ValueError(
            f"{run.path} protects more than one example: what choosing costs is stated for single "
            "examples"
        )
    return Trial(
        partition=tuple(settings.get(name) for name in PARTITION),
        events={ledger.client: ledger.events() for ledger in charged},
        private=not any(
            not all(entry.has_epsilon for entry in ledger.entries) for ledger in charged
        ),
    )


def statement(trials: int, spent: float, *, delta: float, runs: Sequence[float]) -> list[str]:
    """What choosing by so many trials costs, in sentences.

    spent: the epsilon of all trials together.
    runs: the epsilon targets of all runs that follow: each seed of chosen and untouched settings.
    """
    said = [
        f"Choosing among {trials} trials by held-out private rows: the epsilon of choosing is "
        f"{epsilon_words(spent)} at delta {delta:g} for the rows that the trials train on, because "
        "each trial is a release about the same rows.",
        "If the held-out rows count as private, the epsilon of choosing is inf for them: their "
        "accuracies are computed without noise. Rows that are public, or synthetic, cost nothing: "
        "--on data:NAME|PATH, --on synthetic.",
    ]
    if runs and math.isfinite(spent):
        whole = math.fsum([spent, *runs])
        deltas = (len(runs) + 1) * delta
        said.append(
            f"The {len(runs)} runs that follow, of chosen and untouched settings with each seed, "
            f"add {epsilon_words(math.fsum(runs))}. Together: at most {epsilon_words(whole)} at "
            f"delta {deltas:g} (basic composition) for the rows that train in all of them. Each "
            "further run adds its own epsilon once more."
        )
    said.append(
        "A tighter bound is known for random search (Papernot and Steinke 2022): a random number "
        "of trials, each with settings drawn independently, and a private score. It does not cover "
        "this search, whose number of trials is fixed and whose scores have no noise, so it is not "
        "used here."
    )
    return said
