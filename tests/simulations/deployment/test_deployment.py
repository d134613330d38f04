"""The deployment engine on loopback moves the payloads of the simulation, to the byte, in a framing
that is documented.

One run of a SuperLink and two SuperNodes; what the nodes' sockets carried is counted by a proxy
before each of them. Both runs are reproducible, which a deployed client refuses: a ClientApp of
this test lifts that refusal alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.flower.deployment import Deployed, deploy
from benchmarks.flower.flower_processes import carrying
from benchmarks.flower.socket_traffic import Message, Moved, count_moved
from fedlsg.simulations.storage.messages.byte_lines import Line, read_lines
from tests.places import REPOSITORY
from tests.simulations.support.runs import Run, plan_at, run_local

pytestmark = pytest.mark.slow  # a real SuperLink: forty seconds

CLIENTS = REPOSITORY / "tests" / "simulations" / "support"
SETTINGS = {"codec": "noise-floor", "record_updates": True, "rounds": 1}

FRAMING = {"up": (800, 1250), "down": (150, 400)}
"""Bytes over our wire count a request, least and most: docs/communication.md, "Bytes on a
socket".
"""

LONGER_IDS = 100
"""Bytes by which the deployment's serialised messages are longer: names that are hashes, and random
ids.
"""

LEDGER_RECORD = 250
"""Bytes of the record that brings a ledger's lines, or asks for them, next to the lines: names and
hashes.
"""


@dataclass(frozen=True, kw_only=True)
class Both:
    """The same settings simulated and deployed."""

    simulated: Run
    deployed: Run
    flower: Deployed
    seen: tuple[Moved, ...]

    @property
    def lines(self) -> list[Line]:
        return list(read_lines(self.deployed.directory.messages))

    def news(self, line: Line) -> int:
        """Bytes of the ledger lines that an update brings: all of them, in the first round."""
        return (
            self.deployed.directory.ledger(line.client).stat().st_size
            if line.direction == "up"
            else 0
        )

    def on_socket(self, line: Line) -> Message:
        return self.seen[line.client].messages[str(line.round), line.direction]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder: Path = tmp_path_factory.mktemp("deployment")
    simulated = run_local(folder / "simulated", **SETTINGS)
    plan, directory = plan_at(folder / "deployed", engine="flower", **SETTINGS)
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:  # for the SuperNodes' processes
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CLIENTS), str(REPOSITORY)]))
        flower = deploy(plan, folder / "flower", nodes=2, client_app="reproducible_clients:app")
    assert flower.status == "finished:completed", flower.log[-3000:]
    seen = tuple(count_moved(proxy.exchanges()) for proxy in flower.proxies)
    return Both(simulated=simulated, deployed=Run(directory.path, plan), flower=flower, seen=seen)


@pytest.mark.ray
def test_payloads_are_those_of_the_simulation_to_the_byte(both):
    assert len(both.deployed.payloads) == 2
    assert both.deployed.payloads == both.simulated.payloads
    assert both.deployed.weights.equal(both.simulated.weights)
    assert both.deployed.model_file == both.simulated.model_file
    for name in ("frame.json", "frame.npz"):
        written = [
            run.path / "updates" / "round-000001" / name for run in (both.deployed, both.simulated)
        ]
        assert written[0].read_bytes() == written[1].read_bytes()
    key = {
        (line.round, line.client, line.direction): line
        for line in read_lines(both.simulated.directory.messages)
    }
    assert len(both.lines) == len(key) == 4
    for line in both.lines:
        same = key[line.round, line.client, line.direction]
        assert (line.values_bytes, line.payload_bytes) == (same.values_bytes, same.payload_bytes)
        assert (
            0 <= line.wire_bytes - same.wire_bytes - both.news(line) <= LONGER_IDS + LEDGER_RECORD
        )


@pytest.mark.ray
def test_the_socket_carries_each_payload_once_and_verbatim(both):
    """The payloads of updates/ go up; the weights that the round began with come down."""
    for line in both.lines:
        objects = both.on_socket(line).contents
        if line.direction == "up":
            wanted = both.simulated.payloads[f"round-{line.round:06d}/client-{line.client:06d}.bin"]
        else:
            folder = both.simulated.path / "updates" / f"round-{line.round:06d}"
            wanted = np.load(folder / "weights.npy").tobytes()
        assert len(wanted) == line.payload_bytes
        assert [wanted in content for content in objects].count(True) == 1
        assert max(len(content) for content in objects) <= max(
            len(wanted) + 64, 600 + both.news(line)
        )
        assert not any(bytes([wanted[0] ^ 1]) + wanted[1:] in content for content in objects), (
            "negative control"
        )


def framed(line: Line, message: Message) -> bool:
    """Whether the socket carried the message's wire bytes and, for each request, what the document
    says.
    """
    least, most = FRAMING[line.direction]
    return least * message.requests <= message.socket - line.wire_bytes <= most * message.requests


@pytest.mark.ray
def test_wire_bytes_lie_within_the_documented_framing(both):
    for line in both.lines:
        message = both.on_socket(line)
        assert message.requests == len(message.contents) + {"up": 1, "down": 2}[line.direction]
        assert framed(line, message), (line, message)


@pytest.mark.ray
def test_nothing_is_left(both):
    assert carrying(both.flower.home) == set()
    assert not both.flower.home.exists()
