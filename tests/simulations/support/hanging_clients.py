"""A client that never comes back in round 2. Importable on its own: Ray's workers import it by name."""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from simulations.client.app import app as honest

HANGS = 4
app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    if (context.node_config["partition-id"], message.content["round"]["round"]) == (HANGS, 2):
        time.sleep(3600)
    return honest(message, context)
