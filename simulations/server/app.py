"""The Flower ServerApp that ``flwr run`` starts, on Flower's simulation and in a deployment."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import ERROR, INFO

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import add_exit_handler
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedlsg.failure import without_exit
from simulations.callbacks import Callback
from simulations.callbacks.named import named
from simulations.plan.continuity import begin
from simulations.plan.plan import Plan
from simulations.rundir.lock import create
from simulations.rundir.rundir import RunDir
from simulations.server.deployment import Deployment, most_examples
from simulations.server.ready import ready_plan
from simulations.server.recorder import OnRound
from simulations.server.serve import Start, serve
from simulations.settings.checks import check_given
from simulations.settings.published import from_run_config, unfolded
from simulations.settings.settings import Settings, permit_code
from strategies.federation.bounds import reply_bytes
from strategies.federation.nodes import wait_for_nodes
from strategies.strategy import FedLSG

app = ServerApp()
_FAILED: list[str] = []
"""What went wrong last, until it is printed or something went right."""


@contextmanager
def last_line() -> Iterator[None]:
    """What goes wrong inside is Flower's last line, too, below its trace and its "Exit Code"."""
    _FAILED.clear()
    try:
        with without_exit():
            yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        _FAILED.append(" ".join(str(error).split()))
        add_exit_handler(_say)
        raise


def _say() -> None:
    while _FAILED:
        log(ERROR, "fedlsg: error: %s", _FAILED.pop())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
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
    """Plan, make a run directory unless the command line already did, and run all rounds on Flower's grid.

    If no number of clients is set, every node of the federation is a client. In a deployment the nodes declare how many
    examples they have before the plan is made. ``announce`` may wrap the grid that messages go through; ``start`` as in
    ``serve``.
    """
    callbacks = (*named(settings.callbacks), *callbacks)
    if isinstance(grid, InMemoryGrid):
        deployment = None
        if settings.clients is None:
            settings = replace(settings, clients=len(wait_for_nodes(grid, 1)))
        grid, plan = announce(grid), ready_plan(settings)
    else:
        check_given(settings, deployed=True)
        deployment = Deployment(timeout=settings.round_timeout, most_examples=most_examples(settings))
        watched = deployment.watch(grid, settings)
        grid = announce(watched)
        sizes = deployment.gather(grid, settings.clients)
        plan = ready_plan(replace(settings, clients=len(sizes)), declared=sizes)
        watched.largest = reply_bytes(plan.dense_parameters)
    made = None if settings.run_dir else create(None, settings, private=not plan.covered)
    run = made or RunDir.open(str(settings.run_dir))
    if not run.config.exists():  # that of a deployment is its run config as well, when it is continued
        begin(plan, run, named=deployment is not None)
    log(INFO, "run directory: %s", run.path)
    summary = serve(grid, plan, run, on_round=on_round, callbacks=callbacks, deployment=deployment, start=start)
    accuracy, loss = summary["accuracy"], summary["loss"]
    reached = f"loss {loss:.4f}" if accuracy is None else f"accuracy {accuracy:.4f}"
    log(INFO, "%s, epsilon %.4g at delta %g", reached, summary["epsilon_max"], summary["delta"])
    return plan, run
