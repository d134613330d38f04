"""What a run of ``fedlsg.simulate`` leaves in the records of its process: what it spent on its
rows, what it trained.

Each run has a ledger of its own, in its directory. So five runs on the same rows spend five times,
and each says what it spent alone: ``fedlsg.epsilon_of_data`` adds them up.
"""

from collections.abc import Iterator, Sequence
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
from fedlsg.simulations.planning.base.start_weights import rows_behind, starts_of
from fedlsg.simulations.planning.earlier_runs.warm_start import started_from
from fedlsg.simulations.planning.earlier_runs.weights_of_run import weights_in
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.terminals.terminal import print_line
from fedlsg.simulations.report.words import epsilon_words
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.user_code import DATA

WAY = (
    "go on from the run that did, with start_from=RUN, or continue it with out=... and "
    "resume=True; or train both times with fedlsg.PrivateStep and one ledger=PATH"
)
CALLERS = 8
"""Functions between a user's call of ``simulate`` and the record."""


def writer_of(plan: Plan, *, goes_on: bool = False) -> Writer:
    """The writer of the run's weights. Raises ValueError if this process, or an earlier one of this
    user's, has trained the initial ones, and their ledger does not go on; ``goes_on``: it does.

    Weights that a setting names are known by the rows behind them, which the plan has compared,
    where there is a record of these next to the file and names tell rows apart; else by their
    digests.
    """
    s, model = plan.settings, plan.initial.model()
    fresh = goes_on or s.fresh_data or s.start_from is not None or _told_apart(plan)
    writer = Writer(fresh_data=fresh)
    learn_weights()
    writer.check(model, WAY)
    writer.begin(trainable(model))
    return writer


def _told_apart(plan: Plan) -> bool:
    """Whether records say by names that no weights of the settings have seen the rows of the run:
    names of built-in data do, a user may call the same rows by several.
    """
    behind = [rows_behind(source) for source in starts_of(plan.settings).values()]
    names = {rows.removeprefix(DATA).partition(" ")[0] for rows in set().union(*behind)}
    builtin = {*workloads.names()}
    return bool(behind) and all(behind) and {plan.settings.workload, *names} <= builtin


@contextmanager
def on_record(plan: Plan, directory: RunDir, writer: Writer, console: Console) -> Iterator[None]:
    """Inside, the run trains. Warns of a second run on the same rows; says at the end what all of
    them have spent.
    """
    s, places, start = plan.settings, rows_of(plan), started_from(plan)
    # what the run before has spent is in the ledger of this one, too
    goes_on = any(run.ledger == str(start) for run in runs_on(places))
    run = DataRun(
        ledger=str(directory.path.resolve()),
        charged=partial(charged, directory, own=goes_on),
        delta=s.delta,
        warns=plan.method.mechanism.private and not s.reproducible and not goes_on,
    )
    run.read(places, callers=CALLERS)
    try:
        yield
    finally:
        entries = charged(directory, own=goes_on)
        run.charged = lambda: entries
        for tensors in weights_in(directory, trainable(plan.initial.model())):
            writer.note(tensors)
    if len(known := runs_on(places)) > 1:
        total = epsilon_words(epsilon_of_runs(known, s.delta))
        print_line(
            f"all runs of this process on these rows: epsilon {total} at delta {s.delta:g}", console
        )


def rows_of(plan: Plan) -> list[Place]:
    """Where the private rows of a workload of a user's own are; none of fedlsg's own data sets,
    which are public.
    """
    workload, s = workloads.own(plan.settings.workload), plan.settings
    if workload is None or s.public_rows is not None:
        return []
    if isinstance(workload.train, str | Path):
        return places_of(Path(s.data_root or ".") / Path(workload.train).expanduser())
    return places_of(workload.train)


def charged(directory: RunDir, *, own: bool = False) -> list[Sequence[Entry]]:
    """The entries of the clients, and of a server that adds the noise: those that cost the same,
    once. ``own``: without those of a run whose ledgers go on here.
    """
    charges = directory.charges
    every = [charges.of(client).entries for client in (*charges.clients(), SERVER)]
    each = [[e for e in entries if not e.run] for entries in every] if own else every
    return list({tuple(map(kind_of, entries)): entries for entries in each}.values())
