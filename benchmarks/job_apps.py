"""The apps of fedlsg for the workload ``job``; the server waits at a gate before every round but the first."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import benchmarks.jobs  # noqa: F401 - registers the workload
from benchmarks.gate import Gate
from simulations.client.app import app as library
from simulations.grids.grouped import answer_groups
from simulations.server.app import run_rounds

client = ClientApp()  # a line each: Flower looks for them in the text
server = ServerApp()
answer_groups(client)


# Functions of this module: Ray's actors get them by name, and so import it.
@client.query()
def query(message: Message, context: Context) -> Message:
    return library(message, context)


@client.train()
def train(message: Message, context: Context) -> Message:
    return library(message, context)


@server.main()
def main(grid: Grid, context: Context) -> None:
    gate = Gate.from_environment()
    run_rounds(grid, context, on_round=lambda row: gate.wait(row.round + 1))
