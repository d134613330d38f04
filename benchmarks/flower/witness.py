"""A hospital's ClientApp, and what it really did: a line of a file for each charge, each draw of
noise and each payload, which nobody computes from a ledger.

It is put into a copy of the clone, next to fedlsg, and is the app of that copy. In the folder
``~/witness`` of the hospital are its lines (``lines.jsonl``), and ``slow``, whose number of seconds
each message then takes longer.
"""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedlsg.privacy import Entry
from fedlsg.simulations.client import deployed, train
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.deployed import NodeAccount
from fedlsg.strategies.protocol.wire import read_round

__all__ = ["app"]

FOLDER = Path.home() / "witness"
_answer_in, _charge, _step = deployed.answer_in, NodeAccount.charge, train.client_step
_rehearse = deployed.rehearse
_charged: list[list[int]] = []
_rehearsing: list[bool] = []


def note(what: str, **facts: Any) -> None:
    """One line, in one write, on the disk before anything else is done."""
    line = json.dumps({"what": what, "process": os.getpid(), **facts}) + "\n"
    descriptor = os.open(FOLDER / "lines.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def charge(account: NodeAccount, entry: Entry) -> None:
    """As the real one."""
    _charge(account, entry)
    _charged.append([entry.round, entry.attempt])
    note("charged", entry=_charged[-1])


def step(*values: Any, **more: Any) -> Any:
    """As the real one: what it returns is noisy."""
    noisy = _step(*values, **more)
    if not _rehearsing:
        note("drew", entry=_charged[-1] if _charged else None)
    return noisy


def rehearse(*values: Any) -> None:
    """As the real one: a round on public rows, for which nobody is charged."""
    _rehearsing.append(True)
    _rehearse(*values)
    _rehearsing.pop()


def answer_in(here: Any, account: NodeAccount, content: RecordDict, state: RecordDict) -> bytes:
    """As the real one, after as many seconds as the file says."""
    slow = FOLDER / "slow"
    time.sleep(float(slow.read_text()) if slow.exists() else 0.0)
    announced = read_round(content)
    question = f"{announced.round} {announced.updates} {announced.frame_digest.hex()}"
    note("asked", round=announced.round, question=question)
    payload = _answer_in(here, account, content, state)
    digest = hashlib.sha256(payload).hexdigest()
    note("payload", round=announced.round, question=question, digest=digest)
    return payload


FOLDER.mkdir(mode=0o700, exist_ok=True)
deployed.answer_in = answer_in
deployed.rehearse = rehearse
NodeAccount.charge = charge  # type: ignore[method-assign]
train.client_step = step
