"""A client that never comes back in round 2. Importable on its own: Ray's workers import it by name."""

import time

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.wrapped import training

HANGS = 4


@training
def app(message: Message, context: Context) -> Message:
    if (context.node_config["partition-id"], message.content["round"]["round"]) == (HANGS, 2):
        time.sleep(3600)
    return honest(message, context)
