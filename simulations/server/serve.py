"""The server's part of a run, the same on every engine: state, strategy, records."""

from typing import Any

import torch
from flwr.serverapp import Grid

from fedlsg.payload import DEFAULT_STEP
from fedlsg.state import ServerState
from fedlsg.tensors import freed_memory
from simulations.plan.continuity import exclusive
from simulations.plan.plan import Plan
from simulations.rundir.files.disk_space import resumable
from simulations.rundir.rundir import RunDir
from simulations.rundir.steps import make_downlink
from simulations.server.diverged import explain
from simulations.server.federation import Federation
from simulations.server.recorder import Recorder
from simulations.settings.resolve import known
from strategies.federation.report import RoundReport
from strategies.federation.stopped import BudgetSpentError, DivergedError
from strategies.federation.wire import flat_record
from strategies.strategy import FederationSettings, FedLSG


def serve(
    grid: Grid,
    plan: Plan,
    run: RunDir,
    *,
    on_round: Any = None,
    page: bool = True,
    federation: Federation | None = None,
) -> dict[str, Any]:
    """Run the remaining rounds over ``grid`` and return the summary; continues from a checkpoint where there is one.

    ``on_round(row)`` is called with every finished row of rounds.csv; ``page`` asks for report.html; ``federation``:
    the nodes of a deployment. Ends early, with a summary that says so, when every client's privacy budget is spent;
    and, back at the last finished round, when the weights or the loss are no numbers any more. Raises ValueError if
    another process holds the run directory, DiskFullError where the disk is full.
    """
    with resumable(run.path), exclusive(run):
        return _serve(grid, plan, run, on_round, page, federation)


def _serve(
    grid: Grid, plan: Plan, run: RunDir, on_round: Any, page: bool, federation: Federation | None
) -> dict[str, Any]:
    s = plan.settings
    torch.set_num_threads(s.threads)
    freed_memory.keep()
    state = plan.server_state()
    downlink = make_downlink(s, state, run.steps, run.sent)
    recorder = Recorder(run, plan, state, downlink=downlink, page=page, deployed=federation is not None)
    if run.has_checkpoint:
        recorder.resume()
    else:
        recorder.begin()
    if state.round == plan.schedule.rounds and run.summary.exists():
        return run.read_summary()

    def finished(report: RoundReport) -> None:
        recorder.on_round(report)
        if on_round is not None:
            on_round(recorder.last)
        if s.record_updates:
            _record_public(run, state)

    def pruned(report: RoundReport) -> None:
        recorder.on_pruned(report)
        if s.record_updates:
            _record_public(run, state)

    if s.record_updates and state.round == 0:
        _record_public(run, state)
    ended = diverged = None
    remaining = plan.schedule.rounds - state.round
    if remaining > 0:
        strategy = FedLSG(state, _federation_settings(plan, run), finished, pruned, downlink)
        if federation is not None:
            strategy.join(federation.roster, federation.open(run.ledgers, recorder.name))
        try:
            strategy.start(grid, flat_record(state.weights), num_rounds=remaining, timeout=s.round_timeout)
        except BudgetSpentError as stopped:
            ended = str(stopped)
        except DivergedError as error:
            diverged = explain(error, s)
        if federation is not None:
            federation.close(grid)
    return recorder.finish(ended) if diverged is None else recorder.give_up(diverged)


def _federation_settings(plan: Plan, run: RunDir) -> FederationSettings:
    s = plan.settings
    return FederationSettings(
        terms=plan.terms,
        clients_per_round=known(s.clients_per_round),
        local=plan.local,
        codec=s.codec,
        index_mode=plan.index_mode,
        floor_step=s.noise_floor_step or DEFAULT_STEP,
        min_survivors=known(s.min_survivors),
        timeout=s.round_timeout,
        run_dir=str(run.path),
    )


def _record_public(run: RunDir, state: ServerState) -> None:
    """What the payloads of the round that comes next are read with."""
    run.save_weights(state.next_round, state.weights)
    if state.memory is not None:
        run.save_kept(state.next_round, state.frame().indices)
