"""Clients that misbehave in workers of Ray, each a ClientApp: they end a process, hang, or note
what they do.

Importable on its own: Ray's workers import it by name. A flag in the run directory remembers who
died.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlsg.simulations.client import piles
from fedlsg.simulations.client.client_account import RECORD
from fedlsg.simulations.client.client_app import app as honest
from fedlsg.strategies.protocol.wire import read_update, stage_of, update
from tests.simulations.support.two_nodes import NODE, of_node


def training(train: Callable[[Message, Context], Message]) -> ClientApp:
    """Decorates the function that trains; queries have honest replies."""
    app = ClientApp()
    app.query()(honest)
    app.train()(train)
    return app


def die_once(flag: Path) -> None:
    """kill -9 of this process, unless the flag is there."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def place(message: Message, context: Context) -> tuple[int, int, Path]:
    """Client, round and run directory."""
    asked = message.content["round"]
    return (
        int(context.node_config["partition-id"]),
        int(asked["round"]),
        Path(str(asked["run_dir"])),
    )


ONCE, ALWAYS, AT_THE_END = 1, 2, 3


@training
def deadly(message: Message, context: Context) -> Message:
    """Two clients kill the process they run in: one once, the other each time."""
    partition, round, run = place(message, context)
    if round == 2 and partition in (ONCE, ALWAYS):
        flag = run / f"killed-by-{partition}"
        if partition == ALWAYS:
            flag.unlink(missing_ok=True)
        die_once(flag)
    return honest(message, context)


@training
def deadly_secure(message: Message, context: Context) -> Message:
    """Of a secure sum: one has masked its values, once; another does so each time; a third is asked
    for its shares.
    """
    partition, stage = int(context.node_config["partition-id"]), stage_of(message.content)
    flag = Path(str(context.run_config["run-dir"])) / f"killed-by-{partition}-{stage}"
    reply = honest(message, context)
    if {ONCE: "masked", ALWAYS: "masked", AT_THE_END: "unmask"}.get(partition) == stage:
        if partition == ALWAYS:
            flag.unlink(missing_ok=True)
        die_once(flag)
    return reply


DEATHS = 4
"""Of each client: the engine sends a lost message once more, and the server asks a lost client,
alone, once more.
"""


@training
def all_dying(message: Message, context: Context) -> Message:
    """All kill their processes in round 2, until nobody can answer it; client 1 when it has been
    charged.
    """
    partition, round, run = place(message, context)
    reply = honest(message, context) if partition == 1 or round != 2 else None
    for death in range(DEATHS if round == 2 else 0):
        die_once(run / f"death-{death}-of-{partition}")
    return reply or honest(message, context)


HANGS = 4


@training
def hanging(message: Message, context: Context) -> Message:
    """One never comes back in round 2."""
    if place(message, context)[:2] == (HANGS, 2):
        time.sleep(3600)
    return honest(message, context)


class OddError(BaseException):
    """Not an ``Exception``."""


@training
def odd(message: Message, context: Context) -> Message:
    """Two end with what is no ``Exception``."""
    partition = context.node_config["partition-id"]
    if partition < 2:
        raise (OddError if partition else SystemExit)(f"SECRETROW-{partition}")
    return honest(message, context)


@training
def noting(message: Message, context: Context) -> Message:
    """They note in a file next to the run that they are about to train."""
    partition, round, run = place(message, context)
    descriptor = os.open(run.parent / "trained", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{partition} {round}\n".encode())
    os.close(descriptor)
    return honest(message, context)


FATAL = "fatal"
"""A file in a node's folder: its machine ends when a client trains in the round that the file
says.
"""


@training
def watched(message: Message, context: Context) -> Message:
    """They note where they run; the first to train waits until both nodes take part."""
    node, (partition, round, _) = Path(os.environ[NODE]), place(message, context)
    with (node / "trained").open("a") as file:
        file.write(f"{partition} {round}\n")
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


DREW_NOTHING, GARBAGE, EARLIER = 0, 1, 2
"""What a client on a node that lies does, by its number modulo 3."""


@training
def lying(message: Message, context: Context) -> Message:
    """On the second node: one sends a payload and says that it drew nothing, one sends no payload,
    one that of an earlier round; and the first answer of the node's worker is none.
    """
    node, (partition, round, _) = Path(os.environ[NODE]), place(message, context)
    with (node / "trained").open("a") as file:
        file.write(f"{partition} {round}\n")
    deadline = time.monotonic() + 60
    while len(list(node.parent.glob("*/trained"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    reply = honest(message, context)
    if node.name != "2":
        return reply
    if not (node / "garbage").exists():
        (node / "garbage").touch()
        piles.pack = lambda answers: (b"no pickle", [])
    lie = partition % 3
    if lie == DREW_NOTHING:
        context.state[RECORD]["charged"] = False
    elif lie == GARBAGE:
        return Message(update(b"\0" * 64, partition), reply_to=message)
    else:
        before = node / f"payload-{partition}"
        kept = before.read_bytes() if before.exists() else read_update(reply.content)
        before.write_bytes(kept)
        return Message(update(kept, partition), reply_to=message)
    return reply
