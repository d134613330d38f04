"""Carriers of probes in whole runs: absent clients, resumed runs and deployed clients have the server's."""

from typing import Any

import pytest
from flwr.app import Context, Message

from simulations.client import app as client_app
from simulations.client.app import app
from simulations.client.model import process
from simulations.client.train import answer
from tests.simulations.support.runs import Run, run_local

CORE: dict[str, Any] = {"method": "probe", "rank": 6, "out_rank": 5, "probes": 20, "refresh_rounds": 3}
SOME: dict[str, Any] = {"clients": 4, "clients_per_round": 2, "rounds": 7, "evaluate_every": 9}


def alone(message: Message, context: Context) -> Any:
    """A client whose process begins with the message, and that has a machine of its own."""
    process.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_app, "answer", lambda *args, shared: answer(*args, shared=False))
        return app(message, context)


def down(run: Run) -> list[int]:
    return [row.downlink_bytes for row in run.rows]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("unbroken") / "run", **CORE, **SOME)


@pytest.mark.parametrize("downlink", ["full", "sparse"])
def test_clients_on_machines_of_their_own_keep_carriers_in_files(downlink, unbroken, tmp_path):
    """They derive them at a refresh, and need no file of the server."""
    run = run_local(tmp_path / "run", client=alone, downlink=downlink, **CORE, **SOME)
    assert run.weights.equal(unbroken.weights)
    assert [row.downlink_messages for row in run.rows] == [2] * 7
    files = sorted(path.name for path in (run.path / "replicas").iterdir())
    if downlink == "full":
        assert down(run) == down(unbroken)
        assert files == [f"basis-{client:06d}.bin" for client in range(4)]
    else:
        assert files == [f"client-{client:06d}.bin" for client in range(4)]
