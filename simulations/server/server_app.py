"""The server's part of a run, on every engine (``serve``), and as Flower's ServerApp (``app``).

The app, which ``flwr run`` starts, makes the plan first, on Flower's simulation and in a
deployment. Then it calls ``serve``, too.

Messages to clients are counted before they are sent, so that an interrupted round is counted, too.
A round enters rounds.csv, bytes.csv and the checkpoint when it is over. What an interrupted round
had sent is in ``checkpoint/sent.json``. ``fedlsg resume`` runs that round again: it adds what was
sent to ``downlink.interrupted`` of the summary, and whole models sent as repairs to
``downlink.repairs``. What clients replied in it is not known here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler

from fedlsg.privacy import SERVER
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from fedlsg.simulations.planning.base.disclosure import closed_folders, is_covered, released_of
from fedlsg.simulations.planning.earlier_runs.continuity import begin, refuse_lost_checkpoint
from fedlsg.simulations.planning.earlier_runs.warm_start import carry_over
from fedlsg.simulations.planning.earlier_runs.weights_of_run import WeightsOfRun
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.server.callbacks import Callback, CallbackList, StopRun, Watched
from fedlsg.simulations.server.deployment import Deployment, most_examples
from fedlsg.simulations.server.divergence import explain
from fedlsg.simulations.server.final_model import FinalModel, final_model
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.server.recorder import OnRound, Recorder, make_downlink
from fedlsg.simulations.server.summary import Outcome, summarize
from fedlsg.simulations.settings.participation import adaptive_clip
from fedlsg.simulations.settings.rule_checker import check_given
from fedlsg.simulations.settings.settings import Settings, permit_code, values_of
from fedlsg.simulations.settings.with_preset import from_run_config, unfolded
from fedlsg.simulations.storage.atomic_files import resumable, write_atomically
from fedlsg.simulations.storage.lock import create, exclusive
from fedlsg.simulations.storage.results import as_csv
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import write_model
from fedlsg.strategies.protocol.expectations import reply_bytes
from fedlsg.strategies.protocol.nodes import SimulatedGrid, wait_for_nodes
from fedlsg.strategies.protocol.round_report import SimulatedClock
from fedlsg.strategies.protocol.wire import flat_record
from fedlsg.strategies.strategy import BudgetSpentError, DivergedError, FederationSettings, FedLSG
from fedlsg.tensors import keep_freed_memory
from fedlsg.training.client_level import ServerNoise
from fedlsg.user_code.failure import last_words, without_exit

Start = Callable[..., object]
"""A function with the arguments of ``FedLSG.start``."""


def serve(
    grid: Grid,
    plan: Plan,
    run: RunDir,
    *,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    page: bool = True,
    deployment: Deployment | None = None,
    start: Start = FedLSG.start,
) -> dict[str, Any]:
    """Run the remaining rounds over ``grid``, from the checkpoint if there is one.

    Returns the summary. The run ends early if every client's privacy budget is spent, or a callback
    stops it. If the weights or the loss are not finite, it ends at the last finished round.

    on_round: shows every finished row of rounds.csv.
    callbacks: called at the begin, after each round and at the end.
    page: whether to write report.html.
    deployment: the nodes of a deployment; None in a simulation.
    start: runs the rounds.

    Raises ValueError if another process holds the run directory, DiskFullError if the disk is full.
    """
    run.protect(closed_folders(plan))
    torch.set_num_threads(plan.settings.threads)
    keep_freed_memory()
    calls = CallbackList(callbacks)
    with (
        resumable(run.path),
        exclusive(run),
        ExitStack() as ends,
        calls.report_failure(),
        ExitStack() as stack,
    ):
        if isinstance(grid, SimulatedGrid):
            stack.callback(grid.end)
        if not run.has_checkpoint:
            carry_over(plan, run)
        state = plan.initial.server()
        downlink = make_downlink(plan.settings, state, run)
        clock = SimulatedClock(plan.clients.participation)
        weights = WeightsOfRun(plan, run)
        recorder = Recorder(
            run,
            plan,
            state,
            downlink,
            clock,
            deployed=deployment is not None,
            show=_after_each_round(on_round, calls, weights),
        )
        if run.has_checkpoint:
            recorder.resume()
        else:
            recorder.begin()
        if state.round == plan.schedule.rounds and run.summary.exists():
            return run.read_summary()
        ends.callback(weights.remember)  # the weights on disk, however the run ends
        stopped, diverged = _run_rounds(grid, plan, recorder, calls, deployment, start)
        stack.close()  # ends the clients before the summary is written
        if diverged:
            log(ERROR, "%s", stopped)
            recorder.go_back()
        final = final_model(plan, state)
        outcome = recorder.outcome(stopped=stopped, diverged=diverged)
        summary = _finish(run, plan, final, outcome, page=page)
        recorder.manifest.close(recorder.tables.marks())
        calls.on_end(summary)
        return summary


def _after_each_round(show: OnRound | None, calls: CallbackList, weights: WeightsOfRun) -> OnRound:
    """A function that shows a row, then calls the callbacks, then notes the trained weights."""

    def on_round(row: Row) -> None:
        if show is not None:
            show(row)
        calls.on_round(row.columns)
        weights.now_and_then()

    return on_round


def _watched(recorder: Recorder) -> Watched:
    """The argument for ``on_begin`` of callbacks."""
    plan, run, state = recorder.plan, recorder.run, recorder.state

    def save_model(folder: Path) -> None:
        final = final_model(plan, state)
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, final.tensors, final.facts)

    earlier = run.read_rounds()[: state.round] if state.round else []
    return Watched(
        path=run.path,
        settings=values_of(plan.settings),
        rows=[Row.parse(row).columns for row in earlier],
        directions=plan.workload.directions,
        save_model=save_model,
    )


def _finish(
    run: RunDir, plan: Plan, final: FinalModel, outcome: Outcome, *, page: bool
) -> dict[str, Any]:
    """Write the files of a run's end; returns the summary. ``page``: write report.html, too."""
    run.merge_ledgers((plan.clients.names or ()) if plan.settings.show_names else ())
    if outcome.clients:
        rows = as_csv(outcome.clients, otherwise="client").encode()
        write_atomically(run.clients, rows, private=True)
    write_model(run.path, final.tensors, final.facts)
    summary = released_of(plan).of_summary(summarize(plan, outcome))
    run.write_summary(summary)
    if page:
        from fedlsg.simulations.report.page_of_run.run_page import write_run_page

        write_run_page(run)
    return summary


def _run_rounds(
    grid: Grid,
    plan: Plan,
    recorder: Recorder,
    calls: CallbackList,
    deployment: Deployment | None,
    start: Start,
) -> tuple[str | None, bool]:
    """Run the rounds that remain.

    Returns why they ended early, None if they did not, and whether they diverged.
    """
    run, state = recorder.run, recorder.state
    remaining = plan.schedule.rounds - state.round
    if remaining == 0:
        return None, False

    # a resumed run, too: the process before it may have ended too early to do it
    recorder.record_public()
    strategy = FedLSG(
        state,
        federation_settings(plan, run),
        on_round=recorder.on_round,
        on_pruned=recorder.on_pruned,
        downlink=recorder.downlink,
        clock=recorder.clock,
        measured=lambda: MetricRecord(dict(recorder.measured)),
    )
    if deployment is not None:
        strategy.join(deployment.roster, deployment.open(run.ledgers, recorder.name))
    stopped = None
    diverged = False
    try:
        calls.on_begin(_watched(recorder))
        start(
            strategy,
            grid,
            flat_record(state.weights),
            num_rounds=remaining,
            timeout=plan.settings.round_timeout,
        )
    except BudgetSpentError as error:
        stopped = str(error)
    except StopRun as error:
        stopped = str(error) if state.round < plan.schedule.rounds else None
    except DivergedError as error:
        stopped = explain(error, plan.settings)
        diverged = True
    if deployment is not None:
        deployment.close(grid, run.charges)
    return stopped, diverged


def federation_settings(plan: Plan, run: RunDir) -> FederationSettings:
    """The settings of the strategy for a planned run."""
    s = plan.settings
    return FederationSettings(
        terms=plan.terms,
        clients_per_round=s.clients_per_round,
        local=plan.local,
        uplink=plan.uplink,
        min_survivors=s.min_survivors,
        timeout=s.round_timeout,
        run_dir=str(run.path),
        sums=plan.sums,
        reproducible=s.reproducible,
        unit=plan.unit,
        server_noise=_server_noise(plan, run),
        features=plan.workload.features_digest,
    )


def _server_noise(plan: Plan, run: RunDir) -> ServerNoise | None:
    """The noise of client-level privacy, if a trusted server adds it; else None."""
    s = plan.settings
    if not plan.unit.at_server:
        return None

    def stream(purpose: str, round: int) -> SecretStream:
        labels = (*plan.stream, "server", purpose, round)
        return reproducible_stream(s.seed, *labels) if s.reproducible else secret_stream()

    return ServerNoise(
        ledger=run.charges.of(SERVER),
        budget=None if s.epsilon is None else (s.epsilon, s.delta),
        stream=stream,
        adaptive=adaptive_clip(s, plan.method.mechanism.noise_multiplier),
        reproducible=s.reproducible,
    )


app = ServerApp()
_LAST_WORDS: list[str] = []
"""Messages to print when the process exits: of an error, or of a run that a signal may end."""


@contextmanager
def last_line() -> Iterator[None]:
    """Print the message of an error in the block again, below Flower's trace and exit code."""
    _LAST_WORDS.clear()
    try:
        with without_exit():
            yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        _LAST_WORDS.append(last_words(error))
        add_exit_handler(_print_last_words)
        raise


def _print_last_words() -> None:
    while _LAST_WORDS:
        log(ERROR, "fedlsg: error: %s", _LAST_WORDS.pop())


@contextmanager
def _interruptible(run: RunDir, *, deployed: bool) -> Iterator[None]:
    """Print how to continue if Flower ends the process in the block (a signal, ``flwr stop``).

    It is logged at the start, too: a process that is killed, or loses the SuperLink, prints
    nothing.
    """
    command = f"fedlsg resume {run.path}"
    advice = f"{command} says how to continue" if deployed else f"continue with: {command}"
    log(INFO, "run directory: %s; should the run stop before its end, %s", run.path, advice)
    _LAST_WORDS.append(f"interrupted; {advice}")
    add_exit_handler(_print_last_words)
    try:
        yield
    finally:
        _LAST_WORDS.clear()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, with Flower's run config."""
    with last_line():
        run_rounds(grid, context)


def run_rounds(grid: Grid, context: Context, *, on_round: OnRound | None = None) -> None:
    """``run_on`` with the settings of Flower's run config."""
    permit_code(unfolded(context.run_config))
    run_on(grid, replace(from_run_config(context.run_config), engine="flower"), on_round=on_round)


def run_on(
    grid: Grid,
    settings: Settings,
    *,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    announce: Callable[[Grid], Grid] = lambda grid: grid,
    start: Start = FedLSG.start,
) -> tuple[Plan, RunDir]:
    """Plan, make a run directory if the settings name none, and run all rounds on Flower's grid.

    If no number of clients is set, every node of the federation is a client. In a deployment the
    nodes declare how many examples they have before the plan is made. ``announce`` may wrap the
    grid that messages go through; ``start`` as in ``serve``.
    """
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid  # of Flower's own simulation

    callbacks = (*named(settings.callbacks), *callbacks)
    if isinstance(grid, InMemoryGrid):
        deployment = None
        nodes = wait_for_nodes(grid, settings.clients or 1, fixed=True)
        settings = replace(settings, clients=settings.clients or len(nodes))
        grid, plan = announce(grid), ready_plan(settings, callbacks=callbacks)
    else:
        check_given(settings, deployed=True)
        deployment = Deployment(
            timeout=settings.round_timeout, most_examples=most_examples(settings)
        )
        watched = deployment.watch(grid, settings)
        grid = announce(watched)
        sizes = deployment.gather(grid, settings.clients)
        settings = deployment.with_budgets(replace(settings, clients=len(sizes)))
        plan = ready_plan(settings, declared=sizes, callbacks=callbacks)
        watched.largest = reply_bytes(plan.initial.dense_parameters)
        if not (settings.run_dir and RunDir.open(str(settings.run_dir)).has_checkpoint):
            deployment.check_budgets(plan)
    directory = None if settings.run_dir else create(None, settings, private=not is_covered(plan))
    run = directory or RunDir.open(str(settings.run_dir))
    # config.toml exists if this run is continued
    if run.config.exists():
        refuse_lost_checkpoint(run)
    else:
        begin(plan, run, named=deployment is not None)
    for line in (*plan.for_owner, *plan.notes):
        log(WARNING, "%s", line)
    with _interruptible(run, deployed=deployment is not None):
        summary = serve(
            grid,
            plan,
            run,
            on_round=on_round,
            callbacks=callbacks,
            deployment=deployment,
            start=start,
        )
    _log_summary(summary, plan.schedule.rounds)
    return plan, run


def _log_summary(summary: Mapping[str, Any], planned_rounds: int) -> None:
    accuracy, loss = summary["accuracy"], summary["loss"]
    reached = f"loss {loss:.4f}" if accuracy is None else f"accuracy {accuracy:.4f}"
    log(INFO, "%s, epsilon %.4g at delta %g", reached, summary["epsilon_max"], summary["delta"])
    rounds = summary["rounds"]
    if by_client := summary.get("rounds_by_client"):
        counts = ", ".join(f"client {client}: {count}" for client, count in by_client.items())
        log(WARNING, "rounds with an update, of %d: %s", rounds, counts)
    if stopped := summary.get("stopped"):
        log(WARNING, "stopped early, after round %d of %d: %s", rounds, planned_rounds, stopped)
