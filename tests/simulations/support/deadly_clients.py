"""Clients that kill the process they run in, once or each time; a flag in the run directory remembers that they did.

Importable on its own: Ray's workers import it by name.
"""

import os
import signal
from pathlib import Path

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.wrapped import training

ONCE, ALWAYS = 1, 2


@training
def app(message: Message, context: Context) -> Message:
    partition, round_ = context.node_config["partition-id"], message.content["round"]["round"]
    if round_ == 2 and partition in (ONCE, ALWAYS):
        flag = Path(str(message.content["round"]["run_dir"])) / f"killed-by-{partition}"
        if partition == ALWAYS or not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return honest(message, context)
