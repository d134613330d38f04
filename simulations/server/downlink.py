"""The downlink of a run, made from its settings, and what the summary says of it."""

from collections.abc import Mapping
from typing import Any

from fedlsg.state import ServerState
from simulations.rundir.rundir import RunDir
from simulations.rundir.steps import StepFiles
from simulations.server.counting_downlink import NOTHING, CountingDownlink
from simulations.settings.resolve import downlink_codec
from simulations.settings.run import Resolved
from simulations.settings.settings import Settings
from strategies.federation.downlink import FullDownlink
from strategies.federation.sparse_downlink import SparseDownlink


def make_downlink(s: Resolved, state: ServerState, run: RunDir) -> CountingDownlink:
    """The server's side of the downlink."""
    if s.downlink == "full":
        return CountingDownlink(FullDownlink(state), run)
    sparse = SparseDownlink(
        state, downlink_codec(s), clients=s.clients, clients_per_round=s.clients_per_round, store=StepFiles(run.steps)
    )
    return CountingDownlink(sparse, run)


def downlink_facts(s: Settings, state: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary says of a downlink that is in this ``state``.

    ``repairs``: whole models sent because a client had lost its replica, in all rounds of the run, also interrupted
    ones; ``interrupted``: what was sent in rounds that were interrupted and run again by ``resume``, which no other sum
    includes; ``added_variance`` in units of the variance of the noise in the sum.
    """
    interrupted = state.get("interrupted", NOTHING)
    if s.downlink == "full":
        return {"name": "full", "interrupted": interrupted}
    repairs = sum(state["repairs"].values())
    codec = downlink_codec(s)
    found = {"name": s.downlink, "codec": codec.name, "repairs": repairs, "interrupted": interrupted}
    return found | codec.summary()
