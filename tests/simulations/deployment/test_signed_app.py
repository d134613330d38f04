"""What docs/deployment.md says of signed apps: a SuperNode with --trusted-entities runs signed
code, and no other.

Real processes; the hub that carries signatures in Flower 1.41 is one of the test's own, with keys
of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.flower.hospitals import (
    READY,
    REFUSED,
    Federation,
    chapters,
    federation,
    follow,
)
from benchmarks.flower.machines import Machine
from tests.simulations.support.app_hub import Hub, serving, sign, trusted_entities

pytestmark = [pytest.mark.slow, pytest.mark.ray]

INVALID_FAB = 7
"""Flower's error code of an app that could not be verified."""

PROJECT = """
[project]
name = "probe"
version = "1.0.0"
description = "says what the node answers"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "test"

[tool.flwr.app.components]
serverapp = "probe:server"
clientapp = "probe:client"

[tool.flwr.app.config]
name = ""
"""

APP = """
import json, pathlib, time
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    (reply,) = grid.send_and_receive([Message(RecordDict(), nodes[0], MessageType.QUERY)], timeout=200)
    error = [reply.error.code, reply.error.reason] if reply.has_error() else None
    pathlib.Path(context.run_config["name"]).write_text(json.dumps(error))


@client.query()
def query(message, context):
    pathlib.Path(context.run_config["name"]).touch()
    return Message(RecordDict(), reply_to=message)
"""


@dataclass(kw_only=True)
class Signed:
    """One SuperNode that trusts one key, the hub, and the app as it was built and as somebody
    changed it.
    """

    made: Federation
    hub: Hub
    trusted: Ed25519PrivateKey
    app: bytes
    changed: bytes

    def ask(self, name: str, app: str = "@test/probe==1.0.0") -> tuple[list[object] | None, bool]:
        """Run the app: the error that the node answered, and whether any code ran on it."""
        self.made["server"].run(f"flwr run {app} hospitals --run-config \"name='{name}'\" --stream")
        error = json.loads((work(self.made["server"]) / name).read_text())
        return error, (work(self.made["north"]) / name).exists()


def work(machine: Machine) -> Path:
    return machine.home / "federation"


def build(made: Federation, source: str) -> bytes:
    """The app as Flower bundles it; its sources stay in ``probe/``."""
    server = work(made["server"])
    (server / "probe").mkdir(exist_ok=True)
    (server / "probe" / "pyproject.toml").write_text(PROJECT)
    (server / "probe" / "probe.py").write_text(source)
    made["server"].run("flwr build --app probe")
    (bundle,) = server.glob("*.fab")
    content = bundle.read_bytes()
    bundle.unlink()
    return content


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    key = Ed25519PrivateKey.generate()
    with federation(tmp_path_factory.mktemp("signed")) as made, serving() as hub:
        made["server"].run(f"export FLWR_SUPERGRID_API_URL={hub.url}")
        for block in chapters(1, 2, 3, 4):
            follow(made, block)
        (work(made["north"]) / "trusted.yaml").write_text(trusted_entities(key))
        made["north"].start_until(
            "flower-supernode --root-certificates ca.crt --superlink $SERVER:9092 --port 9094 "
            "--auth-supernode-private-key node_key --trusted-entities trusted.yaml",
            READY["north"],
            REFUSED,
        )
        changed = build(made, APP + "\n# one more line\n")
        yield Signed(made=made, hub=hub, trusted=key, app=build(made, APP), changed=changed)


def test_an_app_that_a_trusted_key_signed_runs(node):
    node.hub.app, node.hub.signatures = node.app, (sign(node.trusted, node.app),)
    assert node.ask("signed") == (None, True)


@pytest.mark.parametrize("case", ["another key", "changed", "unsigned", "local"])
def test_any_other_app_is_refused_before_a_line_of_it_runs(node, case):
    key = Ed25519PrivateKey.generate() if case == "another key" else node.trusted
    node.hub.app = node.changed if case == "changed" else node.app
    node.hub.signatures = () if case == "unsigned" else (sign(key, node.app),)
    error, ran = node.ask(
        case.replace(" ", "-"), "probe" if case == "local" else "@test/probe==1.0.0"
    )
    assert error == [INVALID_FAB, "The FAB could not be verified."]
    assert not ran
