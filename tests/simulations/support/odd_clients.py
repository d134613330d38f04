"""Clients that end with what is no ``Exception``. Importable on its own: Ray's workers import it by name."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from simulations.client.app import app as honest

app = ClientApp()


class OddError(BaseException):
    """Not an ``Exception``."""


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    partition = context.node_config["partition-id"]
    if partition < 2:
        raise (OddError if partition else SystemExit)(f"SECRETROW-{partition}")
    return honest(message, context)
