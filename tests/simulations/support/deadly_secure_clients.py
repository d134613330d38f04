"""Clients of a secure sum that kill their worker: one has masked its values, once; another does so each time; a third
is asked for its shares.

Importable on its own: Ray's workers import it by name.
"""

import os
import signal
from pathlib import Path

from flwr.app import Context, Message

from simulations.client.app import app as honest
from strategies.federation.wire import stage_of
from tests.simulations.support.wrapped import training

ONCE, ALWAYS, AT_THE_END = 1, 2, 3


@training
def app(message: Message, context: Context) -> Message:
    partition, stage = context.node_config["partition-id"], stage_of(message.content)
    flag = Path(str(context.run_config["run-dir"])) / f"killed-by-{partition}-{stage}"
    reply = honest(message, context)
    deadly = {ONCE: "masked", ALWAYS: "masked", AT_THE_END: "unmask"}
    if deadly.get(int(partition)) == stage and (partition == ALWAYS or not flag.exists()):
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return reply
