"""``fedlsg.simulate``: a model, data and a loss in; a run directory and its results out."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.console import Console

from fedlsg import strategies, user_code
from fedlsg.config.units import UNITS
from fedlsg.method import Method
from fedlsg.randomness import alone
from fedlsg.simulations import workloads
from fedlsg.simulations.engines import ahead
from fedlsg.simulations.planning.base.start_weights import from_root
from fedlsg.simulations.planning.earlier_runs.continuity import FURTHER, check_same_budgets
from fedlsg.simulations.report.terminals.progress import working
from fedlsg.simulations.run.commands import begun, continued, execute, going_on
from fedlsg.simulations.run.finished import Run
from fedlsg.simulations.run.on_record import on_record, writer_of
from fedlsg.simulations.run.run_settings_typed import RunSettings
from fedlsg.simulations.server.callbacks import Callback, as_callbacks
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.own_epsilons import BELOW, setting_of
from fedlsg.simulations.settings.settings import (
    AUTO,
    check_arguments,
    check_names_of,
    from_mapping,
    names_given,
    permit_code,
    values_of,
    words_given,
)
from fedlsg.simulations.settings.with_preset import first_look, resolve
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import Workload
from fedlsg.simulations.workloads.base import INSTEAD
from fedlsg.simulations.workloads.user_workload import MODEL, make
from fedlsg.training.optimizers import find_name
from fedlsg.user_code.failure import without_exit
from fedlsg.user_code.short_traceback import short_traceback

Callbacks = Sequence[Callback | Callable[[dict[str, Any]], object]]

DATA = ("model", "train", "test", "loss")
OWN = {*DATA, "metrics", "partition", "unit", "settings"}
MORE = frozenset(f.name for f in fields(Workload)) - OWN
"""Further arguments of ``Workload``, which ``simulate`` takes as well."""


@short_traceback
@alone()
@without_exit()
def simulate(
    *,
    model: Any = None,
    train: Any = None,
    test: Any = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    method: str | Callable[..., Method] = "auto",
    epsilon: float | str | Mapping[str | int, float] | Sequence[float] | None = None,
    delta: float | str | Mapping[str | int, float] | Sequence[float] | None = None,
    clients: int | None = None,
    partition: Any = None,
    unit: str | Sequence[Any] | None = None,
    rounds: int | Literal["auto"] | None = None,
    engine: str = "auto",
    out: str | Path | None = None,
    callbacks: str | Callbacks = (),
    workload: str | Workload | Callable[[], Workload] | None = None,
    resume: bool = False,
    start_from: str | Path | Run | None = None,
    fresh_data: bool = False,
    quiet: bool = False,
    **settings: Unpack[RunSettings],
) -> Run:
    """Train a model across simulated clients, each update private and counted; returns the finished
    run.

    model, train, test, loss, metrics, partition: as in ``fedlsg.Workload``, whose other arguments
        (``inputs``, ``targets``, ``transform``, ``num_classes``, ...) are taken as well. Or
        ``workload``: a ``fedlsg.Workload``, a function that returns one, or a name (``"digits"``,
        ``"mine.py:workload"``); then ``model`` names one of its.
    method: the name of a recipe, ``"mine.py:recipe"``, or a recipe: a function of keywords, among
        them ``mechanism`` and ``server``, that returns a ``fedlsg.Method``. Its other keywords are
        settings. Default: ``"dpsgd"`` for a model of your own, ``"lsg"`` for a workload with a
        preset.
    epsilon, delta: what each client may spend in the whole run (default 8 and 1e-5); the noise is
        calibrated for it. A mapping gives clients numbers of their own, by name or number:
        ``{"north": 1, "south": 4}``; so does a list in the order of the clients, a column of
        ``train`` or a file with the columns client, epsilon and delta. The server then weighs
        them by their noise.
        One example is protected: adjacency is add/remove. ``noise_multiplier`` instead of
        ``epsilon`` gives the noise.
    unit: what epsilon protects: ``"example"`` (default), ``"client"`` with all of its data, or a
        person with all of its rows: the column of ``train`` that says whose each row is, as
        ``"patient"``, or an array with one value a row.
    clients: number of clients (default 5, or what the partition has).
    rounds: server rounds. Rounds, sample rate, optimizer and learning rates that nobody gives
        follow from a rule that needs no tuning (``fedlsg docs choosing``).
    engine: ``"local"`` for this process alone, ``"ray"`` for workers of Ray, which take seconds to
        start; ``"auto"`` chooses by the work. With ``reproducible=True`` both give the same
        weights.
    out: the run directory, new or empty; default ``runs/<time>-<workload>-<method>``.
    callbacks: ``fedlsg.Callback`` instances, or functions that are called after each round with a
        dict of its row; or the setting of this name. One that raises ``fedlsg.StopRun`` ends the
        run; after any other exception ``resume`` continues it.
    resume: continue the interrupted run in ``out``, with the same arguments; a setting that is
        left out or "auto" stays as the run has it. With more ``rounds`` a finished run trains
        further: its ledgers go on, ``epsilon`` is that of all rounds
        together, and the noise of those that come is calibrated for it.
    start_from: a finished run whose weights this one starts from, with the same data: its ledgers
        go on, so epsilon counts both runs. Clients that came or left: ``fedlsg docs own``.
    fresh_data: your word that the data are others than those behind the weights that ``model`` or
        ``pretrained`` starts from, which the summary repeats: by default, weights that a private
        step or a run has trained are refused.
    quiet: print nothing.
    settings: any other setting, as ``learning_rate=0.5``: ``fedlsg settings`` lists them. A type
        checker knows their names, and not those of a recipe of your own: give it these as
        ``**own``, a ``dict[str, Any]``.

    Guarantee: no example trains before its client is charged for it; ``Run.epsilon`` follows from
    these ledgers alone. Runs in several threads of one process wait for each other: each gives what
    it gives alone.
    Raises ValueError for a bad argument (the message names it and the fix), OSError for missing
    data, RuntimeError for a run that diverged.
    """
    began = time.monotonic()
    given = {
        **setting_of(epsilon),
        **setting_of(delta, "delta"),
        "clients": clients,
        "rounds": rounds,
        "engine": engine,
        "start_from": str(start_from.directory) if isinstance(start_from, Run) else start_from,
        "fresh_data": fresh_data or None,
    }
    own = {"model": model, "train": train, "test": test, "loss": loss}
    others: dict[str, Any] = {**settings}
    for what in BELOW:
        if not isinstance(own_of_each := others.get(f"client_{what}s"), str | None):
            others |= setting_of(own_of_each, what)
    given["method"] = method_name(method)
    _check_arguments(others, method, own_data=workload is None)
    if workload is not None and isinstance(model, str):
        own["model"], given["model"] = None, model  # the name of one of the workload's
    more = {name: others.pop(name) for name in MORE & others.keys()}
    if workload is None:
        held_out = others.get("holdout") is not None  # test rows are a share of train
        if missing := [n for n in DATA if own[n] is None and not (n == "test" and held_out)]:
            raise ValueError(
                f"simulate needs {', '.join(missing)}; or a workload, as workload='digits'"
                + ("; without test rows, holdout=0.2" if "test" in missing else "")
            )
        workload = Workload(
            **own,
            metrics=metrics,
            partition=partition,
            unit=None if isinstance(unit, str) and unit in UNITS else unit,
            **more,
        )
    elif said := [
        name for name, value in {**own, "metrics": metrics, **more}.items() if value is not None
    ]:
        raise ValueError(f"give either a workload or {', '.join(said)}")
    elif partition is not None:
        given["partition"] = _named(partition)
    given["unit"] = _unit_name(unit, workload)
    if isinstance(callbacks, str):
        given["callbacks"], callbacks = callbacks, ()
    given["workload"] = workload_name(workload)
    if twice := given.keys() & others.keys():
        raise ValueError(f"{', '.join(sorted(twice))}: given twice")
    chosen = {name: value for name, value in (given | others).items() if value is not None}
    permit_code(chosen)
    console = Console(quiet=quiet)
    with ahead(first_look(chosen)):
        return _run(chosen, out, callbacks, console, resume=resume, began=began)


def _check_arguments(others: Iterable[str], method: object, *, own_data: bool) -> None:
    """Raise ValueError for a name that is neither an argument nor a setting. ``own_data``: their
    arguments are meant, and no setting of a data set of the hub.

    What a method in a file declares is known later.
    """
    if isinstance(method, str) and user_code.is_reference(method):
        return
    arguments = {*signature(simulate).parameters, *MORE} - {"settings"}
    given = [name for name in others if name not in MORE]
    check_arguments(given, arguments, instead=INSTEAD if own_data else {})


def _run(
    given: Mapping[str, Any],
    out: str | Path | None,
    callbacks: Callbacks,
    console: Console,
    *,
    resume: bool,
    began: float,
) -> Run:
    own = as_callbacks(callbacks)

    def again(directory: RunDir) -> str:
        return f"continue with the same call, out={str(directory.path)!r} and resume=True"

    with ExitStack() as stack:
        if resume:
            if out is None:
                raise ValueError("resume=True continues the run in out: give out, too")
            directory = RunDir.open(str(out))
            further = _check_same(given, directory)
            stack.enter_context(going_on(directory, console, again))
            plan = continued(directory, console, given, further=further, began=began)
            check_same_budgets(plan, given)
            writer = writer_of(plan, ledger_goes_on=True)
            by_name = named(plan.settings.callbacks)
        else:
            settings = from_root(resolve(given))
            by_name = named(settings.callbacks)  # first: a wrong one leaves nothing behind
            with working(console, "loading data, calibrating noise") as say:
                plan = ready_plan(
                    settings,
                    progress=say,
                    given=words_given(given),
                    callbacks=(*by_name, *own),
                    began=began,
                )
            writer = writer_of(plan)
            folder = None if out is None else str(out)
            plan, directory = stack.enter_context(begun(plan, folder, console, again))
        with on_record(plan, directory, writer, console):
            execute(plan, directory, console, callbacks=(*by_name, *own), again=again)
        return Run(directory.path, plan=plan)


def _check_same(given: Mapping[str, Any], directory: RunDir) -> dict[str, Any]:
    """The settings of a run that trains further. Raises ValueError if a resumed run is given other
    settings than those that it has, and it would not follow them.

    What is left out, "auto" or "preset" is as the run has it: it keeps what a rule chose.
    """
    given = {name: value for name, value in given.items() if value != AUTO}
    kept, asked = values_of(directory.read_config()), values_of(from_root(from_mapping(given)))
    known = {"preset", "data_dir", "data_root", "client_epsilons", "client_deltas"}
    names = names_given(given) & asked.keys() - known
    if "optimizer" in names:
        asked["optimizer"] = find_name(str(asked["optimizer"]))  # as config.toml spells it
    said = {name: asked[name] for name in sorted(names)}
    if other := [
        f"{name}={kept.get(name)!r} (not {said[name]!r})"
        for name in said.keys() - FURTHER
        if said[name] != kept.get(name)
    ]:
        raise ValueError(
            f"resume=True continues the run in {directory.path} as it began: give "
            f"{', '.join(sorted(other))}"
        )
    return {name: said[name] for name in FURTHER & said.keys()}


def workload_name(workload: Any) -> str:
    """The name that settings have for a workload: its own, or one that this process finds it
    under.
    """
    if isinstance(workload, str):
        return workload
    name = (
        getattr(workload, "name", "")
        if isinstance(workload, Workload)
        else user_code.name_of(workload)
    )
    made = make(workload, name or MODEL)
    workloads.give(name or MODEL, made)
    return name or MODEL


def method_name(method: Any) -> str:
    """The name that settings have for a recipe; a function is found under its own by this process.

    Raises ValueError for what is neither.
    """
    if isinstance(method, str):
        return method
    if not callable(method):
        raise ValueError(
            f"method={type(method).__name__}: expected the name of a recipe, or def recipe(*, "
            "mechanism, server)"
        )
    name = user_code.name_of(method)
    strategies.give(name, method)
    check_names_of(name)
    return name


def _unit_name(unit: Any, workload: Any) -> str | None:
    """The setting: a name that was given, or the unit that the workload's rows have."""
    own = workload.unit_name if isinstance(workload, Workload) else ""
    if unit is None or (own and not isinstance(unit, str)):
        return own or None
    if not isinstance(unit, str):
        raise ValueError("one value a row belongs to a workload: fedlsg.Workload(unit=...)")
    return unit


def _named(partition: Any) -> str:
    if not isinstance(partition, str):
        raise ValueError(
            "rows of clients belong to a workload: fedlsg.Workload(partition=...); here it is a "
            "scheme or a column"
        )
    return partition
