"""The Flower ServerApp: what ``flwr run`` starts, by hand or through ``fedlsg run``."""

from dataclasses import replace
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from simulations.plan import make_plan
from simulations.published import from_run_config
from simulations.rundir import RunDir, create
from simulations.server import serve
from strategies.nodes import wait_for_nodes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Plan, make a run directory unless the command line already did, and run all rounds.

    Where no number of clients is set, every node of the federation is one.
    """
    settings = from_run_config(context.run_config)
    if settings.clients is None:
        settings = replace(settings, clients=len(wait_for_nodes(grid, 1)))
    plan = make_plan(settings)
    run = RunDir(Path(settings.run_dir).resolve()) if settings.run_dir else create(None, settings)
    if not run.config.exists():
        run.write_config(plan.settings)
    log(INFO, "run directory: %s", run.path)
    summary = serve(grid, plan, run)
    log(INFO, "accuracy %.4f, epsilon %.4g at delta %g", summary["accuracy"], summary["epsilon_max"], summary["delta"])
