"""The engine ``ray`` on a cluster of two nodes that share no folder: the bits of one machine, also
when one is lost.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.simulations.support.made_images import write_cifar10
from tests.simulations.support.ray_clients import FATAL, GARBAGE
from tests.simulations.support.runs import SMALL, Run, run_local
from tests.simulations.support.two_nodes import TwoNodes, environment, of_node, two_nodes

pytestmark = pytest.mark.ray
CLIENT = "tests.simulations.support.ray_clients:watched"
SETTINGS = {"clients": 6, "rounds": 4, "downlink": "sparse", "momentum": 0.9, "evaluate_every": 4}

DRIVE = """
import json, sys
from pathlib import Path
from fedlsg.simulations.engines import ahead, ray
from tests.simulations.support.runs import ignore, plan_at
with ahead("ray"):
    plan, directory = plan_at(Path(sys.argv[1]), **json.loads(sys.argv[3]))
    ray.run(plan, directory, on_round=ignore, client=sys.argv[2], page=False)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder,
        two_nodes(Path(folder)) as nodes,
    ):
        yield nodes


def drive(
    nodes: TwoNodes,
    out: Path,
    *,
    client: str = CLIENT,
    mirror: dict[str, str] | None = None,
    **settings: object,
) -> Run | str:
    """A run whose driver is a process of the first node and knows a mirror of data, or what it
    wrote as it failed.
    """
    for node in (nodes.first, nodes.second):
        (node / "trained").unlink(missing_ok=True)
    env = environment(
        nodes.first, RAY_ADDRESS=nodes.address, PYTHONPATH=str(REPOSITORY), **(mirror or {})
    )
    command = [
        sys.executable,
        "-c",
        DRIVE,
        str(out),
        client,
        json.dumps({**SMALL, "engine": "ray", **settings}),
    ]
    done = subprocess.run(
        command, env=env, cwd=nodes.first / "work", capture_output=True, text=True, timeout=300
    )
    return Run(out) if done.returncode == 0 else done.stderr


def trained(node: Path) -> list[list[str]]:
    """Client and round of every message that a node's clients got."""
    path = node / "trained"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run on the local engine."""
    return run_local(tmp_path_factory.mktemp("local") / "run", **SETTINGS, record_updates=True)


@pytest.mark.slow
def test_two_nodes_give_the_bits_of_one_process_and_hold_no_file_of_the_run(
    cluster, alone, tmp_path
):
    run = drive(cluster, tmp_path / "run", **SETTINGS, record_updates=True)
    assert isinstance(run, Run), run
    assert run.weights.equal(alone.weights)
    assert (run.ledgers, run.payloads) == (alone.ledgers, alone.payloads)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]
    truth = "updates-truth/round-000001/client-000000.npy"
    assert (run.path / truth).read_bytes() == (alone.path / truth).read_bytes()
    assert trained(cluster.first)
    assert trained(cluster.second), "both nodes took part"
    assert len(trained(cluster.first)) + len(trained(cluster.second)) == 24, (
        "no client was asked twice"
    )
    assert list((cluster.second / "work").iterdir()) == []


@pytest.mark.slow
def test_data_are_found_on_the_node_or_sent_by_the_driver(cluster, tmp_path):
    """Only the driver knows a mirror of these images; the error of the nodes says what to set."""
    write_cifar10(tmp_path / "mirror", train=200, test=20)
    settings = {"workload": "cifar10", "rounds": 1, "clients": 2, "model": "cnn"}
    known = {"FEDLSG_DATA": str(tmp_path / "mirror"), "FEDLSG_CACHE": str(tmp_path / "cache")}
    refused = drive(cluster, tmp_path / "refused", mirror=known, **settings)
    assert isinstance(refused, str)
    assert "cannot load the data" in refused
    assert "data_from=driver" in refused
    run = drive(cluster, tmp_path / "run", mirror=known, data_from="driver", **settings)
    assert isinstance(run, Run)
    assert [row.answered for row in run.rows] == ["0 1"]


@pytest.mark.slow
def test_a_node_that_is_lost_loses_no_round(cluster, alone, tmp_path):
    """It ends in round 2, after a client trained and before it replied. The other node's worker
    trains its clients.
    """
    (cluster.second / FATAL).write_text("2")
    run = drive(cluster, tmp_path / "run", **SETTINGS)
    assert isinstance(run, Run), run
    assert not (cluster.second / FATAL).exists()
    assert of_node(cluster.second) == []
    assert [row.answered.split() for row in run.rows] == [[str(client) for client in range(6)]] * 4
    assert run.weights.equal(alone.weights)
    assert run.ledgers == alone.ledgers, (
        "reproducible noise: the second attempt is the same release"
    )
    assert of_node(cluster.first), "the cluster stays"


@pytest.mark.slow
def test_a_node_that_lies_draws_nothing_without_a_charge_and_loses_no_other_client(
    cluster, tmp_path
):
    """What it says of its own clients is compared with the driver's ledger; what it sends, with
    what was announced.
    """
    client = "tests.simulations.support.ray_clients:lying"
    settings = {**SETTINGS, "downlink": "full", "momentum": 0.0, "reproducible": False}
    run = drive(cluster, tmp_path / "run", client=client, **settings)
    assert isinstance(run, Run), run
    assert len(run.rows) == 4
    told = {(int(client), int(round)) for client, round in trained(cluster.first)}
    lied = {(int(client), int(round)) for client, round in trained(cluster.second)} - told
    assert lied
    for row in run.rows:
        answered, asked = (set(map(int, text.split())) for text in (row.answered, row.asked))
        charged = {c for c in range(6) for entry in run.entries(c) if entry.round == row.round}
        assert answered <= charged, "also those who said that they drew nothing"
        here = {client for client, round in lied if round == row.round}
        assert asked - here <= answered, "no honest client is lost"
        assert not {client for client in here if client % 3 == GARBAGE} & answered
    log = (run.path / "run.log").read_text()
    assert "a worker's answer" in log
    assert "cannot be read" in log
