"""A client that never comes back in round 2. Importable on its own: Ray's actors find it through PYTHONPATH."""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from simulations.client.app import app as honest
from simulations.client.model import process
from simulations.grids.grouped import answer_groups

HANGS = 4
app = ClientApp()
answer_groups(app, forget=process.cache_clear)


@app.query()
def query(message: Message, context: Context) -> Message:
    return honest(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    if (context.node_config["partition-id"], message.content["round"]["round"]) == (HANGS, 2):
        time.sleep(3600)
    return honest(message, context)
