"""The downlink of a run: made from its settings, counted, and what the summary says of it.

Messages to clients are counted before they are sent, so that an interrupted round is counted, too. A round enters
rounds.csv, bytes.csv and the checkpoint when it is over. What an interrupted round had sent is in
``checkpoint/sent.json``. ``fedlsg resume`` runs that round again: it adds what was sent to ``downlink.interrupted`` of
the summary, and whole models sent as repairs to ``downlink.repairs``. What clients replied in it is not known here.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedlsg.carriers.probe import Basis
from fedlsg.frame import Frame
from fedlsg.state import ServerState
from simulations.client.replica import basis_bytes
from simulations.rundir.rundir import RunDir
from simulations.rundir.updates import StepFiles
from simulations.settings.resolve import downlink_codec
from simulations.settings.run import Resolved
from simulations.settings.settings import Settings
from strategies.federation.downlink import Downlink, FullDownlink, Records
from strategies.federation.sparse_downlink import SparseDownlink
from strategies.federation.wire import array_bytes

NOTHING = {"attempts": 0, "messages": 0, "bytes": 0}
"""Rounds that were interrupted, and the messages and payload bytes that they sent down."""


class CountingDownlink:
    """A downlink, and a note in the run directory of what it sends in the current round.

    Guarantee: when a process ends at any point, its successor counts each message that may have left exactly once: with
    a finished round or with the interrupted rounds. (Not synced: a machine that crashes may lose the last note.)
    """

    def __init__(self, inner: Downlink, run: RunDir) -> None:
        self.inner, self.run = inner, run
        self.interrupted = dict(NOTHING)
        self._attempt = 0  # rounds begun, by this process and those before it
        self._current: dict[str, int] | None = None

    def records(
        self, selected: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Those of the inner downlink, counted."""
        made = self.inner.records(selected, frame, framed=framed, lost=lost)
        if self._current is None:
            self._attempt += 1
            self._current = {**NOTHING, "attempts": 1}
        self._current["messages"] += len(made)
        self._current["bytes"] += sum(array_bytes(records.values()) for records in made.values())
        repairs = self.inner.repairs if isinstance(self.inner, SparseDownlink) else {}
        self.run.write_sent({"attempt": self._attempt, "interrupted": self._if_interrupted(), "repairs": repairs})
        return made

    def confirm(self, partitions: Collection[int]) -> None:
        """As the inner downlink."""
        self.inner.confirm(partitions)

    def abandon_round(self) -> None:
        """Count what was sent down without a reply as an interrupted round's."""
        self.interrupted, self._current = self._if_interrupted(), None
        self.inner.abandon_round()

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """As the inner downlink; the next records are another round's."""
        self.inner.finish_round(frame, updates, noise_std)
        self._current = None

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """As the inner downlink; the next records are another round's."""
        self.inner.prune(frame, updates, num_examples=num_examples)
        self._current = None

    def state_dict(self) -> dict[str, Any]:
        """The inner downlink's, how many rounds began, and what interrupted rounds sent."""
        return {**self.inner.state_dict(), "attempt": self._attempt, "interrupted": self.interrupted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; a noted round that the state does not know was interrupted."""
        rest = dict(state)
        self._attempt, self.interrupted = rest.pop("attempt", 0), rest.pop("interrupted", dict(NOTHING))
        note = self.run.read_sent()
        if note["attempt"] > self._attempt:
            self._attempt, self.interrupted = note["attempt"], note["interrupted"]
            rest["repairs"] = {int(client): times for client, times in note["repairs"].items()}
        self._current = None
        self.inner.load_state_dict(rest)

    def _if_interrupted(self) -> dict[str, int]:
        """What interrupted rounds sent if the current round is one of them."""
        return {name: before + (self._current or NOTHING)[name] for name, before in self.interrupted.items()}


def make_downlink(s: Resolved, state: ServerState, run: RunDir) -> CountingDownlink:
    """The server's side of the downlink."""
    store = StepFiles(run.steps)

    def keep(basis: Basis) -> None:
        store.save_basis(basis.round, basis_bytes(basis))

    if s.downlink == "full":
        return CountingDownlink(FullDownlink(state, keep), run)
    sparse = SparseDownlink(
        state, downlink_codec(s), clients=s.clients, clients_per_round=s.clients_per_round, store=store, keep=keep
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
