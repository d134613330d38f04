"""The Flower ServerApp that ``flwr run`` starts, on Flower's simulation and in a deployment."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedlsg import user_code
from simulations.callbacks.callback import Callback
from simulations.callbacks.named import named
from simulations.plan.plan import Plan
from simulations.rundir.rundir import RunDir, create
from simulations.server.deployment import Deployment
from simulations.server.ready import ready_plan
from simulations.server.recorder import OnRound
from simulations.server.serve import serve
from simulations.settings.participation import refuse_deployed
from simulations.settings.published import from_run_config
from simulations.settings.settings import Settings
from strategies.federation.nodes import wait_for_nodes
from strategies.federation.watched_grid import WatchedGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    run_rounds(grid, context)


def run_rounds(grid: Grid, context: Context, *, on_round: OnRound | None = None) -> None:
    """``run_on`` with the settings of Flower's run config."""
    user_code.allow()
    run_on(grid, replace(from_run_config(context.run_config), engine="flower"), on_round=on_round)


def run_on(
    grid: Grid,
    settings: Settings,
    *,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    announce: Callable[[Grid], Grid] = lambda grid: grid,
) -> tuple[Plan, RunDir]:
    """Plan, make a run directory unless the command line already did, and run all rounds on Flower's grid.

    If no number of clients is set, every node of the federation is a client. In a deployment the nodes declare how many
    examples they have before the plan is made. ``announce`` may wrap the grid that messages go through.
    """
    callbacks = (*named(settings.callbacks), *callbacks)
    if isinstance(grid, InMemoryGrid):
        deployment = None
        if settings.clients is None:
            settings = replace(settings, clients=len(wait_for_nodes(grid, 1)))
        grid, plan = announce(grid), ready_plan(settings)
    else:
        refuse_deployed(settings)
        deployment, grid = Deployment(timeout=settings.round_timeout), announce(WatchedGrid(grid))
        sizes = deployment.gather(grid, settings.clients)
        plan = ready_plan(replace(settings, clients=len(sizes)), declared=sizes)
    made = None if settings.run_dir else create(None, settings, private=not plan.covered)
    run = made or RunDir(Path(str(settings.run_dir)).resolve())
    if not run.config.exists():
        run.write_config(plan.settings)
    log(INFO, "run directory: %s", run.path)
    summary = serve(grid, plan, run, on_round=on_round, callbacks=callbacks, deployment=deployment)
    accuracy, loss = summary["accuracy"], summary["loss"]
    reached = f"loss {loss:.4f}" if accuracy is None else f"accuracy {accuracy:.4f}"
    log(INFO, "%s, epsilon %.4g at delta %g", reached, summary["epsilon_max"], summary["delta"])
    return plan, run
