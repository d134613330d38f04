"""``fedlsg.simulate``: a model, data and a loss in; a run directory and its results out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.console import Console

from fedlsg import strategies, user_code
from fedlsg.method import Method
from fedlsg.randomness import alone
from fedlsg.simulations import workloads
from fedlsg.simulations.engines import ahead
from fedlsg.simulations.planning.start_weights import from_root
from fedlsg.simulations.run.commands import begun, continued, execute
from fedlsg.simulations.run.finished import Run
from fedlsg.simulations.run.on_record import on_record, writer_of
from fedlsg.simulations.run.run_settings_typed import RunSettings
from fedlsg.simulations.server.callbacks import Callback, as_callbacks
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.published import first_look, resolve
from fedlsg.simulations.settings.settings import (
    check_names_of,
    from_mapping,
    names_given,
    permit_code,
    values_of,
)
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads import Workload
from fedlsg.simulations.workloads.user_workload import MODEL, make
from fedlsg.user_code.failure import without_exit

Callbacks = Sequence[Callback | Callable[[dict[str, Any]], object]]

BY_RULE = (("engine", "auto"), ("isolation", "auto"))
"""Settings that a run keeps as what a rule chose for it."""
DATA = ("model", "train", "test", "loss")
MORE = frozenset(f.name for f in fields(Workload)) - {*DATA, "metrics", "partition", "settings"}
"""Further arguments of ``Workload``, which ``simulate`` takes as well."""


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
    epsilon: float | None = None,
    delta: float | None = None,
    clients: int | None = None,
    partition: str | Sequence[Any] | None = None,
    rounds: int | Literal["auto"] | None = None,
    engine: str = "auto",
    out: str | Path | None = None,
    callbacks: str | Callbacks = (),
    workload: str | Workload | Callable[[], Workload] | None = None,
    resume: bool = False,
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
        calibrated for it. One example is protected: adjacency is add/remove. ``noise_multiplier``
        instead of ``epsilon`` gives the noise.
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
    resume: continue the interrupted run in ``out``, with the same arguments.
    fresh_data: your word that the data are others than those behind the weights that ``model``
        starts from: by default, weights that a private step or a run of this process has trained
        are refused.
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
    given = {
        "epsilon": epsilon,
        "delta": delta,
        "clients": clients,
        "rounds": rounds,
        "engine": engine,
    }
    own = {"model": model, "train": train, "test": test, "loss": loss}
    others: dict[str, Any] = {**settings}
    if workload is not None and isinstance(model, str):
        own["model"], given["model"] = None, model  # the name of one of the workload's
    more = {name: others.pop(name) for name in MORE & others.keys()}
    if workload is None:
        if missing := [name for name in DATA if own[name] is None]:
            raise ValueError(
                f"simulate needs {', '.join(missing)}; or a workload, as workload='digits'"
            )
        workload = Workload(
            **own, metrics=metrics, partition="iid" if partition is None else partition, **more
        )
    elif said := [
        name for name, value in {**own, "metrics": metrics, **more}.items() if value is not None
    ]:
        raise ValueError(f"give either a workload or {', '.join(said)}")
    elif partition is not None:
        given["partition"] = _named(partition)
    if isinstance(callbacks, str):
        given["callbacks"], callbacks = callbacks, ()
    given["workload"], given["method"] = workload_name(workload), _method_name(method)
    if twice := given.keys() & others.keys():
        raise ValueError(f"{', '.join(sorted(twice))}: given twice")
    chosen = {name: value for name, value in (given | others).items() if value is not None}
    permit_code(chosen)
    console = Console(quiet=quiet)
    with ahead(first_look(chosen)):
        return _run(chosen, out, callbacks, console, resume=resume, fresh_data=fresh_data)


def _run(
    given: Mapping[str, Any],
    out: str | Path | None,
    callbacks: Callbacks,
    console: Console,
    *,
    resume: bool,
    fresh_data: bool,
) -> Run:
    own = as_callbacks(callbacks)
    if resume:
        if out is None:
            raise ValueError("resume=True continues the run in out: give out, too")
        directory = RunDir.open(str(out))
        _check_same(given, directory)
        plan = continued(directory, console, given)
        writer = writer_of(plan, fresh_data=True)  # its ledger is that of its weights
        by_name = named(plan.settings.callbacks)
    else:
        settings = from_root(resolve(given))
        by_name = named(settings.callbacks)  # first: a wrong one leaves nothing behind
        plan = ready_plan(settings, given=names_given(given))
        writer = writer_of(plan, fresh_data=fresh_data)
        plan, directory = begun(plan, None if out is None else str(out), console)
    again = f"continue with the same call, out={str(directory.path)!r} and resume=True"
    with on_record(plan, directory, writer, console):
        execute(plan, directory, console, callbacks=(*by_name, *own), again=again)
    return Run(directory.path, plan=plan)


def _check_same(given: Mapping[str, Any], directory: RunDir) -> None:
    """Raise ValueError if a resumed run is given other settings than those that it has: it would
    not follow them.
    """
    kept, asked = values_of(directory.read_config()), values_of(from_root(from_mapping(given)))
    names = names_given(given) & asked.keys() - {"preset", "data_dir", "data_root"}
    said = {name: asked[name] for name in sorted(names) if (name, asked[name]) not in BY_RULE}
    if other := [
        f"{name}={kept.get(name)!r} (not {said[name]!r})"
        for name in said
        if said[name] != kept.get(name)
    ]:
        raise ValueError(
            f"resume=True continues the run in {directory.path} as it began: give "
            f"{', '.join(other)}"
        )


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


def _method_name(method: Any) -> str:
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


def _named(partition: Any) -> str:
    if not isinstance(partition, str):
        raise ValueError("lists of rows belong to a workload: fedlsg.Workload(partition=[...])")
    return partition
