"""Clients that end with what is no ``Exception``. Importable on its own: Ray's workers import it by name."""

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.wrapped import training


class OddError(BaseException):
    """Not an ``Exception``."""


@training
def app(message: Message, context: Context) -> Message:
    partition = context.node_config["partition-id"]
    if partition < 2:
        raise (OddError if partition else SystemExit)(f"SECRETROW-{partition}")
    return honest(message, context)
