"""The stages of a secure sum as Flower records; ``fedlsg.secure_sum`` has the protocol.

server -> client   the terms of the attempt, the stage, and the protocol's message for it [stage
                   "masked": next to the announcement of the round, whose values are asked for]
client -> server   the protocol's answer, as the payload of an update
"""

import hashlib
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedlsg.secure_sum import GivenUp, Server, Terms, Total
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.strategies.protocol.wire import STAGE as TERMS

MESSAGE = "secure sum message"
"""Name of the record with the protocol's message."""
KEYS, SHARES, MASKED, AGREE, UNMASK = STAGES = ("keys", "shares", "masked", "agree", "unmask")


def asks_for_values(stage: str | None) -> bool:
    """Whether a message of this ``stage_of`` asks a client to train; other stages only prepare or
    unmask a sum.
    """
    return stage in (None, MASKED)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One message of the server. Other fields are as in ``Terms``.

    name: of the stage.
    noise: standard deviation of one client's share of the noise, in units of the values. All keys
        depend on it, and a client adds no other noise, because each ledger counts on the noise of
        the other clients.
    message: of the protocol.
    """

    name: str
    run: bytes
    round: int
    attempt: int
    clients: tuple[int, ...]
    length: int
    bits: int
    noise: float
    message: bytes = b""

    def terms(self, sums: SumTerms) -> Terms:
        """The terms of the attempt; thresholds are those of the reader's own settings. Raises
        ValueError as they do.
        """
        terms = Terms(
            run=self.run,
            round=self.round,
            attempt=self.attempt,
            clients=self.clients,
            min_survivors=sums.min_survivors,
            colluders=sums.colluders,
            length=self.length,
            bits=self.bits,
        )
        return replace(terms, run=hashlib.sha256(self.run + struct.pack("<d", self.noise)).digest())


def write_stage(content: RecordDict, stage: Stage) -> RecordDict:
    """Add a stage to a message; returns the message."""
    content[TERMS] = ConfigRecord(
        {
            "stage": stage.name,
            "run": stage.run,
            "round": stage.round,
            "attempt": stage.attempt,
            "clients": list(stage.clients),
            "length": stage.length,
            "bits": stage.bits,
            "noise": stage.noise,
        }
    )
    data = Array(dtype="uint8", shape=(len(stage.message),), stype="raw", data=stage.message)
    content[MESSAGE] = ArrayRecord({"message": data})
    return content


def read_stage(content: RecordDict) -> Stage:
    """The stage of a message. Raises ValueError for anything else."""
    try:
        return _read_stage(
            content.config_records[TERMS], content.array_records[MESSAGE]["message"].data
        )
    except KeyError as error:
        raise ValueError(
            f"expected a stage with its terms and its message, got none of the name {error}"
        ) from None


def _read_stage(record: ConfigRecord, message: bytes) -> Stage:
    run, clients, name = record["run"], record["clients"], record["stage"]
    if name not in STAGES or not isinstance(run, bytes) or not isinstance(clients, list):
        raise ValueError(f"expected a stage among {STAGES} with its terms, got {name!r}")
    noise = record["noise"]
    if type(noise) is not float or not 0 < noise < math.inf:
        raise ValueError(f"expected a finite noise > 0, got {noise!r}")
    numbers = {
        key: read_integer(record[key], key) for key in ("round", "attempt", "length", "bits")
    }
    return Stage(
        name=str(name),
        run=run,
        clients=tuple(read_integer(client, "client") for client in clients),
        message=message,
        noise=noise,
        **numbers,
    )


def read_integer(value: object, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"expected a whole number {name}, got {value!r}")
    return value


Ask = Callable[[str, Mapping[int, bytes]], Mapping[int, bytes]]
"""Sends a stage with a message to each client; returns their answers."""


def open_sum(server: Server, ask: Ask, clients: Iterable[int]) -> Mapping[int, bytes] | GivenUp:
    """Collect keys and shares; returns the messages of stage "masked" by remaining client."""
    sent = server.rosters(ask(KEYS, dict.fromkeys(clients, b"")).items())
    return sent if isinstance(sent, GivenUp) else server.deliveries(ask(SHARES, sent).items())


def close_sum(
    server: Server, ask: Ask, masked: Mapping[int, bytes], read: Callable[[], None] = lambda: None
) -> Total | GivenUp:
    """The sum of masked values, or why there is none.

    read: called when the server has read the values.
    """
    sent = server.survivors(masked.items())
    read()
    if not isinstance(sent, GivenUp):
        sent = server.requests(ask(AGREE, sent).items())
    return sent if isinstance(sent, GivenUp) else server.total(ask(UNMASK, sent).items())
