"""Clients that note in a file, named by the driver, that they are about to train. Ray imports this file by its name."""

import os
from pathlib import Path

from flwr.app import Context, Message

from simulations.client.app import app as honest
from tests.simulations.support.wrapped import training


@training
def app(message: Message, context: Context) -> Message:
    announced = message.content["round"]
    note = Path(str(announced["run_dir"])).parent / "trained"
    line = f"{context.node_config['partition-id']} {announced['round']}\n"
    descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    return honest(message, context)
