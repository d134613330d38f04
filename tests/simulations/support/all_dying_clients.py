"""Clients that all kill their processes in round 2, until nobody can answer it; client 1 when it has been charged.

Importable on its own: Ray's workers import it by name.
"""

import os
import signal
from pathlib import Path

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.wrapped import training

DEATHS = 4
"""Of each client: the engine sends a lost message once more, and the server asks a lost client, alone, once more."""


@training
def app(message: Message, context: Context) -> Message:
    partition, asked = context.node_config["partition-id"], message.content["round"]
    reply = honest(message, context) if partition == 1 or asked["round"] != 2 else None
    if asked["round"] == 2:
        for death in range(DEATHS):
            flag = Path(str(asked["run_dir"])) / f"death-{death}-of-{partition}"
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    return reply or honest(message, context)
