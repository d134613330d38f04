"""A ClientApp that replies honestly to queries, and trains as a test says."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from simulations.client.app import app as honest


def training(train: Callable[[Message, Context], Message]) -> ClientApp:
    """Decorates the function that trains."""
    app = ClientApp()
    app.query()(honest)
    app.train()(train)
    return app
