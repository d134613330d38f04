"""Clients that note where they run, and in one round end their machine. Ray imports this file by its name.

The first to train waits until both nodes take part.
"""

import os
import signal
import time
from pathlib import Path

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.two_nodes import NODE, of_node
from tests.simulations.support.wrapped import training

FATAL = "fatal"
"""A file in a node's folder: its machine ends when a client trains in the round that the file says."""


@training
def app(message: Message, context: Context) -> Message:
    node, round = Path(os.environ[NODE]), message.content["round"]["round"]
    with (node / "trained").open("a") as file:
        file.write(f"{context.node_config['partition-id']} {round}\n")
    deadline = time.monotonic() + 60
    while len(list(node.parent.glob("*/trained"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    fatal = node / FATAL
    reply = honest(message, context)
    if fatal.exists() and int(fatal.read_text()) == round:
        fatal.unlink()
        for pid in of_node(node):
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return reply
