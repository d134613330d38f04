"""What a run of ``fedlsg.simulate`` leaves in records outside of its directory, and is checked by.

Two records, because each run has a ledger of its own, which does not see other runs:

    rows     which runs of this process were on the same private rows. Five runs spend five times,
             and each ledger says what one spent: ``fedlsg.epsilon_of_data`` adds them up.
    weights  which weights were trained, in this process or an earlier one. A run that starts from
             them would go on without what they have spent: it is refused.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from fedlsg.gradients import trainable
from fedlsg.privacy import SERVER, Entry
from fedlsg.privacy.data_record import DataRun, Place, epsilon_of_runs, places_of, runs_on
from fedlsg.privacy.known_weights import learn_weights
from fedlsg.privacy.ledger_entry import kind_of
from fedlsg.privacy.trained_weights import Writer
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.start_weights import rows_behind, starts_of, workload_of
from fedlsg.simulations.planning.earlier_runs.warm_start import started_from
from fedlsg.simulations.planning.earlier_runs.weights_of_run import weights_in
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.terminals.terminal import print_line
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.storage.run_directory import RunDir

HOW_TO_GO_ON = (
    "go on from the run that did, with start_from=RUN, or continue it with out=... and "
    "resume=True; or train both times with fedlsg.PrivateStep and one ledger=PATH"
)


def writer_of(plan: Plan, *, ledger_goes_on: bool = False) -> Writer:
    """The writer of the record of weights, after a check of the initial weights.

    ``ledger_goes_on``: whether the run continues the ledger of the run that trained them.
    Raises ValueError if the initial weights were trained by this user, in this process or an
    earlier one, and the ledger of that run does not go on. Weights are recognised by their digests.
    That check is left out where the plan has compared the rows behind the weights already: by names
    of built-in data, or because the run starts from another run.
    """
    s = plan.settings
    model = plan.initial.model()
    writer = Writer(
        fresh_data=s.fresh_data
        # not declared, but these too need no check by digests
        or ledger_goes_on
        or s.start_from is not None
        or _rows_have_names(plan)
    )
    learn_weights()
    writer.check(model, HOW_TO_GO_ON)
    writer.begin(trainable(model))
    return writer


def _rows_have_names(plan: Plan) -> bool:
    """Whether names alone say which rows the run and the weights of its settings have seen.

    Only names of built-in data do: a user, or a package, may give the same rows several names.
    """
    rows_of_sources = [rows_behind(source) for source in starts_of(plan.settings).values()]
    if not rows_of_sources or not all(rows_of_sources):
        return False
    names = map(workload_of, set().union(*rows_of_sources))
    return {plan.settings.workload, *names} <= {*workloads.built_in()}


@contextmanager
def on_record(plan: Plan, directory: RunDir, writer: Writer, console: Console) -> Iterator[None]:
    """Inside, the run trains. Warns of a second run on the same rows, and prints at the end what
    all of them have spent.
    """
    s = plan.settings
    places = rows_of(plan)
    start = started_from(plan)
    # the ledger of this run then has the charges of the earlier one, which must not count twice
    counted_before = any(run.ledger == str(start) for run in runs_on(places))
    run = DataRun(
        ledger=str(directory.path.resolve()),
        charged=partial(charged, directory, only_this_run=counted_before),
        delta=s.delta,
        warns=plan.method.mechanism.private and not s.reproducible and not counted_before,
    )
    run.read(places)
    try:
        yield
    finally:
        entries = charged(directory, only_this_run=counted_before)
        run.charged = lambda: entries  # the directory may be moved or deleted later
        for tensors in weights_in(directory, trainable(plan.initial.model())):
            writer.note(tensors)
    runs = runs_on(places)
    if len(runs) > 1:
        total = epsilon_words(epsilon_of_runs(runs, s.delta))
        print_line(
            f"all runs of this process on these rows: epsilon {total} at delta {s.delta:g}", console
        )


def rows_of(plan: Plan) -> list[Place]:
    """Where the private rows of a run are; [] for public ones: built-in data, ``public_rows``."""
    s = plan.settings
    workload = workloads.own(s.workload)
    if workload is None or s.public_rows is not None:
        return []
    if isinstance(workload.train, str | Path):
        return places_of(Path(s.data_root or ".") / Path(workload.train).expanduser())
    return places_of(workload.train)


def charged(directory: RunDir, *, only_this_run: bool = False) -> list[Sequence[Entry]]:
    """The ledger entries of each client, and of a server that adds the noise.

    Clients whose entries cost the same are listed once.
    ``only_this_run``: leave out entries of an earlier run whose ledgers go on here.
    """
    charges = directory.charges
    different: dict[Hashable, Sequence[Entry]] = {}
    for client in (*charges.clients(), SERVER):
        entries = charges.of(client).entries
        if only_this_run:
            entries = [entry for entry in entries if not entry.run]
        different[tuple(map(kind_of, entries))] = entries
    return list(different.values())
